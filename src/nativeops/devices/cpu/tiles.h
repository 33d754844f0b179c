// SPDX-License-Identifier: Apache-2.0
// The tile registers of AMX: eight small matrices, and their product by pairs of bf16. Written as
// text, not with the compiler's intrinsics: those of g++ 12 do not say that they read memory, so
// that what was stored a moment ago may be stored after them. soft_tiles.h has the same operations
// for machines without the instructions; tests/toolkit/test_tiles.py keeps the two alike.
#pragma once
#include <cstdint>
#include <cstring>

namespace nativeops::tiles {

constexpr int kTiles = 8, kMaxRows = 16, kMaxBytes = 64;  // rows of a tile, bytes of a row

// How many rows each tile has, and bytes in each; 0 of both where it is not used.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(Config) == 64, "the processor reads it as it lies");

}  // namespace nativeops::tiles

#if defined(NATIVEOPS_SOFT_TILES)
#include "nativeops/devices/cpu/soft_tiles.h"
#else
namespace nativeops::tiles {

// All tiles become 0 and have these sizes from here on, on this thread.
inline void configure(const Config& config) { __asm__ volatile("ldtilecfg %0" : : "m"(config)); }

// No tile is in use any more: the system need not save them when it changes threads.
inline void release() { __asm__ volatile("tilerelease" : : : "memory"); }

// A row every `stride` bytes.
template <int kTile>
inline void load(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(from), "r"(stride), "i"(kTile)
                   : "memory");
}
template <int kTile>
inline void store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                   :
                   : "r"(to), "r"(stride), "i"(kTile)
                   : "memory");
}

// sums[i][j] += Σ_k left[i][k]·right[k][j], where left has words of two bf16, for k = 2p and 2p +
// 1, in row i and column p, and right in row p and column j.
template <int kSums, int kLeft, int kRight>
inline void add_products() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "i"(kSums), "i"(kLeft), "i"(kRight));
}

}  // namespace nativeops::tiles
#endif
