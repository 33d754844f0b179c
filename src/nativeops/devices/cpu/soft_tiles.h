// SPDX-License-Identifier: Apache-2.0
// What tiles.h does, on any machine: for tests, by -DNATIVEOPS_SOFT_TILES. As Intel's manual
// defines the instructions (volume 2, TDPBF16PS): the even and the odd products of a row are summed
// apart, each with one rounding for product and sum; small numbers are zero, as inputs and as
// results. Where the processor would stop the program, so does this.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nativeops/devices/half.h"

namespace nativeops::tiles {

struct State {
  Config config{};
  bool configured = false;
  alignas(64) uint8_t data[kTiles][kMaxRows][kMaxBytes] = {};
};
inline thread_local State state;

inline void demand(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "tiles: %s\n", what);
  std::abort();
}
inline void demand_usable(int tile) {
  demand(state.configured, "used without a configuration");
  demand(state.config.rows[tile] > 0, "a tile of no size is used");
}

inline void configure(const Config& config) {
  demand(config.palette == 1 && config.start_row == 0, "only palette 1 from row 0 is known");
  for (uint8_t byte : config.reserved) demand(byte == 0, "reserved bytes must be 0");
  for (int i = 0; i < 16; ++i) {
    const int rows = config.rows[i], bytes = config.bytes[i];
    demand(i < kTiles || (rows == 0 && bytes == 0), "there are eight tiles");
    demand(rows <= kMaxRows && bytes <= kMaxBytes, "a tile is too large");
    demand((rows == 0) == (bytes == 0), "a tile has rows without columns, or columns without rows");
  }
  state = State{};
  state.config = config;
  state.configured = true;
}

inline void release() { state = State{}; }

template <int kTile>
inline void load(const void* from, int64_t stride) {
  demand_usable(kTile);
  std::memset(state.data[kTile], 0, sizeof state.data[kTile]);
  for (int r = 0; r < state.config.rows[kTile]; ++r) {
    std::memcpy(state.data[kTile][r], static_cast<const char*>(from) + r * stride,
                state.config.bytes[kTile]);
  }
}
template <int kTile>
inline void store(void* to, int64_t stride) {
  demand_usable(kTile);
  for (int r = 0; r < state.config.rows[kTile]; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, state.data[kTile][r],
                state.config.bytes[kTile]);
  }
}

// A number below the smallest normal one is a zero of its sign.
inline float flushed(float a) { return std::fabs(a) < 0x1p-126f ? std::copysign(0.0f, a) : a; }

// The first (0) or the second (1) bf16 of a word.
inline float half_of(uint32_t word, int which) {
  return flushed(bit_cast<float>(which == 0 ? word << 16 : word & 0xffff0000u));
}

template <int kSums, int kLeft, int kRight>
inline void add_products() {
  for (int tile : {kSums, kLeft, kRight}) demand_usable(tile);
  const auto& rows = state.config.rows;
  const auto& bytes = state.config.bytes;
  demand(rows[kSums] == rows[kLeft] && bytes[kSums] == bytes[kRight] &&
             bytes[kLeft] == 4 * rows[kRight] && bytes[kSums] % 4 == 0,
         "the sizes of the three tiles do not fit");
  static_assert(kSums != kLeft && kSums != kRight && kLeft != kRight, "three different tiles");
  for (int i = 0; i < rows[kSums]; ++i) {
    uint32_t left[16], right[16];
    float sums[16], apart[2][16] = {};
    std::memcpy(left, state.data[kLeft][i], sizeof left);
    std::memcpy(sums, state.data[kSums][i], sizeof sums);
    for (int p = 0; p < rows[kRight]; ++p) {
      std::memcpy(right, state.data[kRight][p], sizeof right);
      for (int half = 0; half < 2; ++half) {
        const float a = half_of(left[p], half);
        for (int j = 0; j < 16; ++j) {
          apart[half][j] = flushed(std::fma(a, half_of(right[j], half), apart[half][j]));
        }
      }
    }
    for (int j = 0; j < bytes[kSums] / 4; ++j) {
      sums[j] = flushed(flushed(sums[j]) + flushed(apart[0][j] + apart[1][j]));
    }
    std::memcpy(state.data[kSums][i], sums, sizeof sums);
  }
}

}  // namespace nativeops::tiles
