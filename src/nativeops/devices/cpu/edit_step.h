// SPDX-License-Identifier: Apache-2.0
// The step of the bit-parallel edit distance, for one pair or as many as a vector has words.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/words.h"

namespace nativeops::tuned::edits {

constexpr int64_t kBits = 64;  // rows of the table in a word
inline int64_t words_for(int64_t rows) { return ceil_div(rows, kBits); }

// 64 rows of one column of the table D, as differences down the column: bit i of `plus` and `minus`
// says that D[i, j] - D[i-1, j] is 1 or -1. Myers 1999 in the form of Hyyrö 2003, figure 5, but
// that of the differences along a row the rows that do not grow are kept instead of those that do:
// then the row above the first one, which always grows, needs no instruction.
template <class V>
struct Rows {
  V plus, minus;

  // To the next column. `equal`: which of these rows' labels is that of the column. In `in_stays`
  // and `in_minus`, 0 or 1: whether the row above did not grow by one, and whether it shrank. In
  // the highest bits of `out_stays` and `out_minus`: the same of the last row. Returns which
  // distances are those of the row above in the column before.
  [[gnu::always_inline]] V step(V equal, V in_stays, V in_minus, V& out_stays, V& out_minus) {
    const V vertical = equal | minus;
    equal |= in_minus;
    const V zero = simd::xor_or((equal & plus) + plus, plus, equal);
    out_stays = simd::or_and_not(zero, plus, minus);
    out_minus = plus & zero;
    const V right_stays = (out_stays + out_stays) | in_stays;
    const V right_minus = (out_minus + out_minus) | in_minus;
    plus = simd::and_not_or(right_stays, vertical, right_minus);
    minus = vertical & ~right_stays;
    return zero | vertical;
  }
};

// The rows of word `word` that a pattern of so many labels has.
inline uint64_t rows_in_word(int64_t rows, int64_t word) {
  const int64_t rest = rows - word * kBits;
  if (rest <= 0) return 0;
  return rest >= kBits ? ~uint64_t{0} : (uint64_t{1} << rest) - 1;
}

// The sum of the differences in the first `rows` rows, of which a word has 64.
inline int64_t sum_down(const uint64_t* plus, const uint64_t* minus, int64_t stride, int64_t rows) {
  int64_t sum = 0;
  for (int64_t w = 0; w < words_for(rows); ++w) {
    const uint64_t mask = rows_in_word(rows, w);
    sum += __builtin_popcountll(plus[w * stride] & mask);
    sum -= __builtin_popcountll(minus[w * stride] & mask);
  }
  return sum;
}

// The same in every word at once, of those rows that `mask` has. A table tells how many bits four
// bits have, and another how many they have not: their sum is the difference and 64.
inline simd::Words sum_down(simd::Words plus, simd::Words minus, simd::Words mask) {
  constexpr uint64_t kSet[] = {0x0302020102010100, 0x0403030203020201};
  constexpr uint64_t kUnset[] = {0x0102020302030304, 0x0001010201020203};
  const auto by_bytes = [&](const uint64_t (&table)[2], simd::Words x) {
    const simd::Words low = simd::words(0x0f0f0f0f0f0f0f0f);
    return simd::look_up(table, x & mask & low) + simd::look_up(table, (x & mask) >> 4 & low);
  };
  return simd::sum_bytes(by_bytes(kSet, plus) + by_bytes(kUnset, minus)) - simd::words(64);
}

}  // namespace nativeops::tuned::edits
