// SPDX-License-Identifier: Apache-2.0
// Matrix products by tiles of bf16: what panels.h does with vectors. A number is one bf16, or the
// sum of two: high, the nearest bf16, and low, the one nearest to what is missing; then a product
// is high·high + high·low + low·high, all of them summed in float.
//
// A row of numbers is a row of words with two bf16 each: those of all high parts, then those of all
// low ones, each up to a whole tile (32 numbers, the rest 0).
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "nativeops/devices/cpu/halves.h"
#include "nativeops/devices/cpu/panels.h"
#include "nativeops/devices/cpu/tiles.h"

namespace nativeops::tuned {

// How this thread's tiles are configured; 0 where they are not.
inline thread_local int tile_shape = 0;

// 1 or 2 parts: bf16 for a number.
template <int kPartsOfNumber>
struct Tiles {
  static constexpr bool kAreTiles = true;
  static constexpr int kParts = kPartsOfNumber;
  static constexpr int kPerWord = 2, kSide = 16;
  static constexpr int kWide = 8;  // vectors in a panel: rows are read for all of them at once
  static constexpr int64_t kDepth = 32;  // rows and words of a row; numbers in them
  static constexpr int64_t kTileWords = kSide * kSide, kBytes = sizeof(float);
  using V = simd::Vec<float>;

  // Words of a row of so many numbers; numbers that have room in them.
  static constexpr int64_t words(int64_t numbers) { return round_up(numbers, kDepth) / 2 * kParts; }
  static int64_t room(int64_t words) { return words * 2 / kParts; }

  // Two tiles below each other share each load of weights, and two beside each other that of rows.
  template <int>
  static constexpr int kRows = 2 * kSide;

  // The tiles of a thread stay configured for as long as this lives.
  // One within another takes the tiles from that, too, whose next product shapes them again.
  class Thread {
   public:
    Thread() = default;
    Thread(const Thread&) = delete;
    ~Thread() {
      if (tile_shape != 0) tiles::release();
      tile_shape = 0;
    }
  };

  // The parts of numbers. What would round to infinity is cut off instead; of what is infinite
  // nothing is missing.
  static void split(V a, V (&part)[kParts]) {
    part[0] = simd::to_bf16(a);
    if constexpr (kParts == 2) {
      const auto size = simd::abs(a).raw;
      part[0] = {size >= 0x1.ffp127f ? simd::cut_to_bf16(a).raw : part[0].raw};
      const auto finite = size <= std::numeric_limits<float>::max();
      part[1] = simd::to_bf16({finite ? a.raw - part[0].raw : V::Raw{}});
    }
  }

  // Numbers [first, first + 16) of a row; those from `count` on are 0, like all behind the last.
  static void write(float* row, int64_t words, int64_t first, V value, int64_t count) {
    V part[kParts];
    split(first_of(value, count), part);
    for (int p = 0; p < kParts; ++p) {
      bf16* to = reinterpret_cast<bf16*>(row + p * words / kParts) + first;
      simd::store_halves(to, part[p]);
      if (count <= kSide && first % kDepth == 0)
        simd::store_halves(to + kSide, simd::zero<float>());
    }
  }
  static V read(const float* row, int64_t words, int64_t first) {
    V sum = simd::zero<float>();
    for (int p = kParts - 1; p >= 0; --p) sum = sum + part_of(row, words, first, p);
    return sum;
  }
  static V part_of(const float* row, int64_t words, int64_t first, int part) {
    return simd::load(reinterpret_cast<const bf16*>(row + part * words / kParts) + first, kSide);
  }

  // A vector of a panel's columns, from `depth` rows with 16 numbers (or less) each: columns two by
  // two, of them tile below tile, so that a product reads one stream. `words` are those of a row of
  // all numbers.
  template <class T>
  static void pack(View<const T, 2> columns, float* panel, int vectors, int v, int64_t words) {
    alignas(64) float block[kDepth * kSide];
    const int64_t depth = columns.size(0);
    for (int64_t b = 0; b * kDepth < depth; ++b) {
      const int64_t some = std::min<int64_t>(kDepth, depth - b * kDepth);
      if (some < kDepth) std::fill_n(block, kDepth * kSide, 0.0f);
      tuned::pack(part(columns, b * kDepth, some, 0, kSide), block, kSide);
      pack_block(block, kSide, panel, vectors, v, words, b);
    }
  }
  // Of 32 rows, `stride` numbers apart.
  static void pack_block(const float* block, int64_t stride, float* panel, int vectors, int v,
                         int64_t words, int64_t b) {
    for (int64_t k = 0; k < kDepth; k += 2) {
      V even[kParts], odd[kParts];
      split(simd::load(block + k * stride), even);
      split(simd::load(block + (k + 1) * stride), odd);
      for (int p = 0; p < kParts; ++p) {
        float* tile = const_cast<float*>(tile_at(panel, vectors, v, words, b, p));
        simd::store(tile + k / 2 * kSide, simd::words_of(even[p], odd[p]));
      }
    }
  }

  // sums[r] = init[r] + rows[r]·panel for rows at equal distances; `words` are those of a row from
  // `offset` on. The sum of an element is taken in the order of k, whatever the block.
  static void multiply(int vectors, const float* const* rows, int64_t count, int64_t offset,
                       int64_t words, const float* panel, const float* init, int64_t init_stride,
                       float* sums, int64_t stride) {
    const Panel weights{panel, vectors, words};
    const int64_t distance = count > 1 ? rows[1] - rows[0] : 0;
    for_blocks(count, kRows<0>, [&](int64_t first, int64_t height) {
      const int64_t upper = height > kSide ? ceil_div(height, 2) : height;
      shape(static_cast<int>(upper), static_cast<int>(height - upper));
      const Rows left{rows[first] + offset, distance, upper};
      const Sums out{init + first * init_stride, init_stride, sums + first * stride, stride, upper};
      if (height > kSide) {
        for (int v = 0; v < vectors; v += 2) block_of<2>(weights, v, left, out);
      } else {
        for (int v = 0; v < vectors; v += 4) block_of<1>(weights, v, left, out);
      }
    });
  }

 private:
  // The first `count` lanes; 0 in the others.
  static V first_of(V a, int64_t count) {
    if (count >= kSide) return a;
    alignas(64) float lane[kSide] = {};
    simd::store(lane, a, count);
    return simd::load(lane);
  }

  struct Panel {
    const float* data;
    int vectors;
    int64_t words;
  };
  struct Rows {
    const float* data;
    int64_t distance, upper;  // of two rows; rows in the upper tile
  };
  struct Sums {
    const float* init;
    int64_t init_stride;
    float* data;
    int64_t stride, upper;
  };

  static const float* tile_at(const float* panel, int vectors, int v, int64_t words, int64_t b,
                              int part) {
    const int wide = std::min(2, vectors - v / 2 * 2);
    return panel + v / 2 * 2 * kSide * words + ((b * kParts + part) * wide + v % 2) * kTileWords;
  }

  // Tiles 0 to 3 hold sums; 4 and 5 rows, the lower ones in 5 (2 and 3 are their sums), or the low
  // parts where there are no lower ones; 6 and 7 weights.
  static void shape(int upper, int lower) {
    const int wanted = upper + (kSide + 1) * lower;
    if (tile_shape == wanted) return;
    tiles::Config config;
    std::fill_n(config.bytes, tiles::kTiles, uint16_t{kSide * 4});
    std::fill_n(config.rows, tiles::kTiles, static_cast<uint8_t>(upper));
    if (lower > 0) config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(lower);
    config.rows[6] = config.rows[7] = kSide;
    tiles::configure(config);
    tile_shape = wanted;
  }

  // kTall: tiles below each other. Two of them are multiplied with up to two vectors of columns
  // from `v` on (4 products for 4 loads; of two parts 12 for 8), one with all up to four (4 for 5).
  template <int kTall>
  static void block_of(const Panel& weights, int v, const Rows& left, const Sums& out) {
    const int wide = std::min(weights.vectors - v, kTall == 2 ? 2 : 4);
    if (wide == 1) return block<kTall, 1>(weights, v, left, out);
    if (wide == 2) return block<kTall, 2>(weights, v, left, out);
    if constexpr (kTall == 1) {
      if (wide == 3) return block<kTall, 3>(weights, v, left, out);
      block<kTall, 4>(weights, v, left, out);
    }
  }
  // What a loop reads lies in locals: a tile's load may change all other memory, as far as the
  // compiler knows.
  template <int kTall, int kWide>
  static void block(const Panel& weights, int first, const Rows& left, const Sums& out) {
    each_sum<kTall, kWide>([&](auto tall, auto wide) {
      const float* from = out.init + tall * out.upper * out.init_stride + (first + wide) * kSide;
      tiles::load<sum_tile<kTall>(tall, wide)>(from, out.init_stride * kBytes);
    });
    const int64_t distance = left.distance * kBytes, low = weights.words / kParts;
    const float *upper = left.data, *lower = left.data + left.upper * left.distance,
                *right = weights.data + first * kSide * weights.words,
                *further = right + 2 * kSide * weights.words;  // the third and fourth vector
    for (int64_t b = room(weights.words) / kDepth; b > 0; --b) {
      tiles::load<4>(upper, distance);
      if constexpr (kTall == 1 && kParts == 2) tiles::load<5>(upper + low, distance);
      const auto load_lower = [&] { tiles::load<5>(lower, distance); };
      if constexpr (kParts == 2) add_weights<kTall, kWide, 1>(right, further, load_lower);
      add_weights<kTall, kWide, 0>(right, further, load_lower);
      if constexpr (kTall == 2 && kParts == 2) {
        tiles::load<4>(upper + low, distance);
        tiles::load<5>(lower + low, distance);
        each_sum<2, kWide>([](auto tall, auto wide) {  // the high parts of weights are still there
          tiles::add_products<sum_tile<2>(tall, wide), 4 + tall, 6 + wide>();
        });
      }
      upper += kSide, lower += kSide;
      right += kParts * std::min(kWide, 2) * kTileWords;
      further += kParts * (kWide - 2) * kTileWords;
    }
    each_sum<kTall, kWide>([&](auto tall, auto wide) {
      float* to = out.data + tall * out.upper * out.stride + (first + wide) * kSide;
      tiles::store<sum_tile<kTall>(tall, wide)>(to, out.stride * kBytes);
    });
  }
  // The products with one part of the weights: of the high parts of rows, and of what is in tile 5.
  // What is loaded later is waited for less: the lower rows come after a first product.
  template <int kTall, int kWide, int kPart, class Load>
  [[gnu::always_inline]] static void add_weights(const float* right, const float* further,
                                                 Load load_lower) {
    simd::unroll<kWide>([&](auto wide) __attribute__((always_inline)) {
      constexpr int kRight = 6 + wide % 2, kPair = wide < 2 ? std::min(kWide, 2) : kWide - 2;
      const float* pair = wide < 2 ? right : further;
      tiles::load<kRight>(pair + (kPart * kPair + wide % 2) * kTileWords, kSide * kBytes);
      tiles::add_products<sum_tile<kTall>(0, wide), 4, kRight>();
      if constexpr (kTall == 2 && wide == 0 && kPart == kParts - 1) load_lower();
      if constexpr (kTall == 2) tiles::add_products<sum_tile<2>(1, wide), 5, kRight>();
      if constexpr (kTall == 1 && kParts == 2 && kPart == 0) {
        tiles::add_products<sum_tile<1>(0, wide), 5, kRight>();
      }
    });
  }

  template <int kTall>
  static constexpr int sum_tile(int tall, int wide) {
    return kTall == 2 ? 2 * tall + wide : wide;
  }
  template <int kTall, int kWide, class F>
  static void each_sum(F&& f) {
    simd::unroll<kTall>([&](auto tall) { simd::unroll<kWide>([&](auto wide) { f(tall, wide); }); });
  }
};

}  // namespace nativeops::tuned
