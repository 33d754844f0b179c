// SPDX-License-Identifier: Apache-2.0
// The edit distance of one pair if it is at most a limit: only words of the table near its main
// diagonal, from top to bottom of a column, and an end as soon as none can be within the limit.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "nativeops/devices/cpu/edit_codes.h"
#include "nativeops/devices/cpu/edit_step.h"

namespace nativeops::tuned::edits {

// Whether the band is so narrow that it is worth leaving out the rest: the words of the band go one
// after the other, about ten times as slow as those of a whole column (Zen4 EPYC, 2026-11).
inline bool narrow(int64_t limit, int64_t rows) { return limit >= 0 && limit < rows / 40; }

class Banded {
 public:
  Banded(const uint32_t* pattern, int64_t rows, const uint32_t* text, int64_t columns,
         int64_t limit)
      : pattern_(pattern), rows_(rows), text_(text), columns_(columns), limit_(limit) {}

  // The distance, or limit + 1.
  int64_t run() {
    const int64_t words = words_for(rows_);
    word_.assign(words, {~uint64_t{0}, 0});
    bottom_.resize(words);
    int64_t known = 0;  // words that were in the band once
    for (int64_t j = 0; j < columns_; ++j) {
      // Rows j + 1 - limit to j + 1 + limit, counted from 1, matter in this column.
      const int64_t first = std::max<int64_t>(0, j - limit_) / kBits;
      const int64_t last = std::min(rows_ - 1, j + limit_) / kBits;
      for (; known <= last; ++known) bottom_[known] = end_of(known, j);
      column(j, first, last);
      if (j % kBits == 0 && hopeless(first, last)) return limit_ + 1;
    }
    const int64_t excess = words * kBits - rows_;  // rows of the last word behind the last label
    return std::min(limit_ + 1, bottom_[words - 1] - below(word_[words - 1], kBits - excess));
  }

 private:
  // A word that the band reaches at column j grows by one in each row: as if all ways to its last
  // row came from the word above it. What comes from below the band is more than the limit.
  int64_t end_of(int64_t word, int64_t j) const {
    return (word == 0 ? j : bottom_[word - 1]) + kBits;
  }

  void column(int64_t j, int64_t first, int64_t last) {
    uint64_t stays = 0, minus = 0;  // above the band, too, a row grows by at most one
    for (int64_t w = first; w <= last; ++w) {
      const uint64_t equal = matches(w, text_[j]);
      word_[w].step(equal, stays >> 63, minus >> 63, stays, minus);
      bottom_[w] += 1 - static_cast<int64_t>(stays >> 63) - static_cast<int64_t>(minus >> 63);
    }
  }

  // Excess rows match nothing, so that their distances are those of labels that are nowhere else.
  uint64_t matches(int64_t word, uint32_t label) const {
    const uint64_t found = simd::matches(pattern_ + word * kBits, label);
    const int64_t rest = rows_ - word * kBits;
    return rest >= kBits ? found : found & ((uint64_t{1} << rest) - 1);
  }

  // No row of a word is less than its last one by more than 63.
  bool hopeless(int64_t first, int64_t last) const {
    for (int64_t w = first; w <= last; ++w) {
      if (bottom_[w] - (kBits - 1) <= limit_) return false;
    }
    return true;
  }

  static int64_t below(const Rows<uint64_t>& word, int64_t from) {
    if (from >= kBits) return 0;
    return __builtin_popcountll(word.plus >> from) - __builtin_popcountll(word.minus >> from);
  }

  const uint32_t* pattern_;
  int64_t rows_;
  const uint32_t* text_;
  int64_t columns_, limit_;
  std::vector<Rows<uint64_t>> word_;
  std::vector<int64_t> bottom_;
};

// At most limit + 1; the pattern and the text have a label each at least.
template <class I>
int64_t banded_distance(const Sequence<I>& pattern, const Sequence<I>& text, int64_t limit) {
  const CodedPair coded(pattern, text);
  return Banded(coded.pattern.data(), pattern.n, coded.text.data(), text.n, limit).run();
}

}  // namespace nativeops::tuned::edits
