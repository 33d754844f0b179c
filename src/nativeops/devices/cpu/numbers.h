// SPDX-License-Identifier: Apache-2.0
// What products of matrices and of panels have in common: the kinds of what is multiplied, and how
// much of it fits in the registers.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/vectors.h"

namespace nativeops::tuned {

constexpr int kWidest = 4;  // vectors in a panel

// How many rows a block of so many vectors has: its sums, what is multiplied of each row or of each
// vector, whichever are fewer, and one of the others must fit in the registers. Of 16 registers all
// are taken: sums of which there are less than 12 wait for each other.
template <int kVectors>
constexpr int kBlockRows = NATIVEOPS_LEVEL >= 2 ? (kVectors == 4   ? 6
                                                   : kVectors == 3 ? 8
                                                   : kVectors == 2 ? 12
                                                                   : 14)
                                                : (kVectors == 4   ? 3
                                                   : kVectors == 3 ? 4
                                                   : kVectors == 2 ? 6
                                                                   : 8);

// What a product is made of: numbers, or words that hold two bf16 (Pairs in panels.h), or tiles of
// such words (tile_products.h). A row of numbers is a row of words.
struct Numbers {
  static constexpr bool kAreTiles = false;
  static constexpr int kPerWord = 1, kWide = kWidest;  // vectors in a panel, at most
  template <int kVectors>
  static constexpr int kRows = kBlockRows<kVectors>;
  static int64_t words(int64_t numbers) { return numbers; }
  static int64_t room(int64_t words) { return words; }
  struct Thread {};  // what a thread must have as long as it multiplies
  template <class V>
  static V fma(V a, V b, V c) {
    return simd::fma(a, b, c);
  }
};

}  // namespace nativeops::tuned
