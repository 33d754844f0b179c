// SPDX-License-Identifier: Apache-2.0
// The edit distance of one long pair if it is at most a limit: bands of rows, each only through the
// columns where a way within the limit can pass, and an end as soon as there are none.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "nativeops/devices/cpu/edit_chain.h"

namespace nativeops::tuned::edits {

// Of a table of n rows and m columns, the cells (i, j) that a way of at most `limit` edits can
// pass: to the diagonal k = j - i it takes |k| edits, and from there |m - n - k| (Ukkonen 1985).
// The limit is not below |m - n|.
struct Passable {
  int64_t n, m, limit;

  int64_t last(int64_t i) const { return std::min(m, i + (limit + m - n) / 2); }
  int64_t width() const { return limit + 1; }  // in columns
  bool has(int64_t i, int64_t j, int64_t distance) const {
    return distance + std::abs(m - j - (n - i)) <= limit;
  }
};

// Cycles of a chain of so many vectors for each column, which waits for itself (Zen 5 EPYC,
// 2026-11).
constexpr int64_t kCycles[] = {0, 22, 24, 29, 34};

// What bands of so many vectors cost.
inline int64_t cost_of_bands(const Passable& cells, int64_t vectors) {
  const int64_t words = vectors * kWords, rows = words * kBits, bands = ceil_div(cells.n, rows);
  return bands * (std::min(rows, cells.n) + cells.width() + words) * kCycles[vectors];
}
inline int64_t best_vectors(const Passable& cells) {
  int64_t best = 1;
  for (int64_t v : {2, kVectors}) {
    if (cost_of_bands(cells, v) < cost_of_bands(cells, best)) best = v;
  }
  return best;
}

// Whether they cost less than the whole table, which is shared by some threads.
inline bool worth_bands(const Passable& cells, int64_t threads) {
  const int64_t all = ceil_div(cells.n, kBandRows) * cells.m * kCycles[kVectors];
  return cost_of_bands(cells, best_vectors(cells)) < all / threads;
}

template <class I>
class Banded {
 public:
  Banded(const Sequence<I>& pattern, const Sequence<I>& text, int64_t limit)
      : rows_(pattern),
        columns_(text),
        cells_{pattern.n, text.n, limit},
        range_(range_of(pattern, text)),
        few_(range_.span() < 4096),
        alphabet_(few_ ? Range<I>() : range_, few_ ? 0 : pattern.n + text.n),
        pattern_(new int32_t[pattern.n]),
        text_(new int32_t[text.n]),
        stays_(new uint64_t[text.n]),
        minus_(new uint64_t[text.n]) {}

  // The distance, or limit + 1.
  int64_t run() {
    const int64_t n = cells_.n, m = cells_.m, none = cells_.limit + 1;
    if (ends_early()) return none;
    const int64_t vectors = best_vectors(cells_);
    int64_t from = 0, distance = 0;  // the first passable cell of row `row`, and what is there
    for (int64_t row = 0, rows = 0; row < n; row += rows) {
      if (from == m) return std::min(none, distance + n - row);
      // The first band has few rows: it may be the last one, too.
      rows = std::min((row > 0 ? vectors : 1) * kWords * kBits, n - row);
      const int64_t end = reach(row + rows);
      if (row + rows == n) distance += along(from, end);
      const int64_t down = run_band(row, rows, from, end);
      distance += down;
      if (row + rows == n) return std::min(none, distance);
      for (; !cells_.has(row + rows, from, distance); ++from) {
        if (from == end) return none;
        distance += along(from, from + 1);
      }
    }
    return std::min(none, m);
  }

 private:
  // Whether no cell below the first word of rows can be passed, as in pairs with little in common.
  bool ends_early() {
    if (cells_.limit > kBits / 2 || cells_.n <= kBits) return false;
    const int64_t end = reach(kBits);
    find(0, kBits, 1);
    Rows<uint64_t> word{~uint64_t{0}, 0};
    int64_t distance = kBits;
    for (int64_t j = 0; j < end; ++j) {
      if (cells_.has(kBits, j, distance)) return false;
      uint64_t stays = 0, minus = 0;
      word.step(matches_.word(text_[j]), 0, 0, stays, minus);
      distance += 1 - static_cast<int64_t>(stays >> 63) - static_cast<int64_t>(minus >> 63);
    }
    return !cells_.has(kBits, end, distance);
  }

  static Range<I> range_of(const Sequence<I>& pattern, const Sequence<I>& text) {
    Range<I> range;
    range.add(pattern);
    range.add(text);
    return range;
  }

  // The columns that a way can pass down to this row, which are made ready.
  int64_t reach(int64_t row) {
    const int64_t end = cells_.last(row);
    number(columns_, reached_, end, text_.get());
    std::fill(&stays_[reached_], &stays_[end], 0);
    std::fill(&minus_[reached_], &minus_[end], 0);
    return reached_ = end;
  }

  // How much larger the last row computed is at column `to` than at column `from`. Beyond the
  // columns that it was computed for it grows by one, as on a way that leaves out their labels.
  int64_t along(int64_t from, int64_t to) const {
    int64_t sum = to - from;
    for (int64_t j = from; j < to; ++j)
      sum -= static_cast<int64_t>((stays_[j] >> 63) + (minus_[j] >> 63));
    return sum;
  }

  // Some rows through the columns `from` to `end`; left of them a row is larger by one than the one
  // above. Returns how much larger the last one is than the row above the first: in the last column
  // if that is the last row, else in the first.
  int64_t run_band(int64_t row, int64_t rows, int64_t from, int64_t end) {
    const int64_t vectors = ceil_div(words_for(rows), kWords), words = vectors * kWords;
    find(row, rows, words);
    alignas(64) uint64_t plus[kVectors * kWords], minus[kVectors * kWords] = {};
    std::fill_n(plus, words, ~uint64_t{0});
    run_chain(vectors, {&text_[from], &matches_, &stays_[from], &minus_[from], end - from}, plus,
              minus);
    return row + rows == cells_.n ? sum_down(plus, minus, 1, rows) : rows;
  }

  // Where the labels of some rows match.
  void find(int64_t row, int64_t rows, int64_t words) {
    number(rows_, row, row + rows, pattern_.get());
    matches_.find(&pattern_[row], rows, words, few_ ? range_.span() + 1 : alphabet_.count() + 1);
  }

  void number(const Sequence<I>& sequence, int64_t from, int64_t to, int32_t* numbers) {
    if (few_) {
      const Sequence<I> some = {sequence.data + from * sequence.stride, sequence.stride, to - from};
      return write_codes(some, range_.low, numbers + from);
    }
    for (int64_t i = from; i < to; ++i) numbers[i] = alphabet_.add(sequence[i]);
  }

  const Sequence<I> rows_, columns_;
  const Passable cells_;
  const Range<I> range_;
  const bool few_;
  Alphabet<I> alphabet_;
  std::unique_ptr<int32_t[]> pattern_, text_;  // in numbers, as far as they are needed
  std::unique_ptr<uint64_t[]> stays_,
      minus_;            // of the last row computed: whether it does at a column
  int64_t reached_ = 0;  // columns that are ready
  Matches matches_;
};

}  // namespace nativeops::tuned::edits
