// SPDX-License-Identifier: Apache-2.0
// The edit distance of one long pair: a chain of words down the table, one column apart, each of
// which hands the change of its last row to the next (a systolic array).
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "nativeops/devices/cpu/edit_codes.h"
#include "nativeops/devices/cpu/edit_step.h"
#include "nativeops/devices/cpu/phases.h"

namespace nativeops::tuned::edits {

using simd::kWords;
using simd::Words;

constexpr int kVectors = NATIVEOPS_LEVEL >= 2 ? 4 : 2;  // of the longest chain
constexpr int64_t kBandRows = kVectors * kWords * kBits;
constexpr int64_t kBlock = 64;  // steps whose matches are found ahead

// Where the labels of some rows match: the words of a chain for each label, and row 0 for all
// others. The rows are looked up in a table of all labels, or, where these are so many that no
// cache near would hold it, in a hash table of the rows' own.
class Matches {
 public:
  // Numbers of `rows` labels, all below `numbers`. They must stay where they are until the next
  // ones come: only their entries are cleared then.
  void find(const int32_t* label, int64_t rows, int64_t words, int64_t numbers) {
    forget();
    label_ = label, rows_ = rows, hashes_ = numbers > kNear;
    if (hashes_) {
      shift_ = 32 - 6;
      while (int64_t{4} * rows > int64_t{1} << (32 - shift_)) --shift_;
      row_of_.assign(size_t{1} << (32 - shift_), 0);
      own_.resize(row_of_.size());
    } else if (static_cast<int64_t>(row_of_.size()) < numbers) {
      row_of_.resize(numbers, 0);
    }
    int32_t last = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const size_t at = place(label[i]);
      if (row_of_[at] == 0) row_of_[at] = ++last;
      if (hashes_) own_[at] = label[i];
    }
    memory_.assign((last + 1) * words + 8, 0);
    words_ = memory_.data() + (-reinterpret_cast<uintptr_t>(memory_.data()) % 64) / 8;
    for (int64_t i = 0; i < rows; ++i) {
      words_[row_of_[place(label[i])] * words + i / kBits] |= uint64_t{1} << i % kBits;
    }
  }
  const uint64_t* words() const { return words_; }
  uint64_t word(int32_t label) const { return words_[row_of_[place(label)]]; }  // the only one

  // to[i]: where the words of label[i] are, of which there are so many.
  template <int64_t kWordsOfRow>
  void look_up(const int32_t* label, int64_t count, const uint64_t** to) const {
    const auto write = [=, row_of = row_of_.data(), words = words_](auto where) {
      for (int64_t i = 0; i < count; ++i) to[i] = words + row_of[where(label[i])] * kWordsOfRow;
    };
    hashes_ ? write([this](int32_t l) { return place(l); }) : write([](int32_t l) { return l; });
  }

 private:
  static constexpr int64_t kNear = 1 << 14;  // labels, whose rows are 64 KB

  void forget() {
    if (hashes_) return row_of_.clear();
    for (int64_t i = 0; i < rows_; ++i) row_of_[label_[i]] = 0;
  }

  // Where the row of a label is, or the free place where it would be.
  size_t place(int32_t label) const {
    if (!hashes_) return label;
    size_t at = (static_cast<uint32_t>(label) * 0x9e3779b1u) >> shift_;
    while (row_of_[at] != 0 && own_[at] != label) at = at + 1 == own_.size() ? 0 : at + 1;
    return at;
  }

  const int32_t* label_ = nullptr;
  int64_t rows_ = 0;
  bool hashes_ = false;
  int shift_ = 0;
  std::vector<int32_t> row_of_, own_;
  std::vector<uint64_t> memory_;
  uint64_t* words_ = nullptr;  // where the memory begins a cache line
};

// The columns of a band of the table, and whether the row above it stays, that is, does not grow by
// one, or shrinks at each: in the highest bit, where the band leaves the same of its own last row.
struct Columns {
  const int32_t* number;   // of each column's label
  const Matches* matches;  // of the band's rows
  uint64_t *stays, *minus;
  int64_t count;
};

// Step t of the chain takes word L through column t - L: equal[t] has in each word the matches of
// its own column. Three blends do the shearing: by 1, 2 and 4 columns where the word's number has
// that bit.
template <int kChain>
void shear(const uint64_t* const* row, int64_t vector, Words* equal) {
  Words r1{}, a1{}, a2{}, b1{}, b2{}, b3{}, b4{};
  const uint64_t* const* from = row - vector * kWords;
  const auto next = [&](int64_t t) __attribute__((always_inline)) {
    const Words r = simd::load_words(from[t] + vector * kWords);
    const Words a = simd::pick<1>(r, r1);
    const Words b = simd::pick<2>(a, a2);
    const Words e = kWords == 8 ? simd::pick<4>(b, b4) : b;
    r1 = r, a2 = a1, a1 = a;
    b4 = b3, b3 = b2, b2 = b1, b1 = b;
    return e;
  };
  for (int64_t t = -kWords; t < 0; ++t) next(t);
  for (int64_t t = 0; t < kBlock; t += 4) {  // after four steps all are where they were: no moves
    simd::unroll<4>([&](auto i) __attribute__((always_inline)) {
      equal[(t + i) * kChain + vector] = next(t + i);
    });
  }
}

template <int kChain>
class Chain {
 public:
  static constexpr int64_t kLength = kChain * kWords;  // words

  // The differences down the columns before and, afterwards, those down the last one.
  static void run(const Columns& columns, uint64_t* plus, uint64_t* minus) {
    Chain chain;
    for (int v = 0; v < kChain; ++v) {
      chain.rows_[v] = {simd::load_words(plus + v * kWords), simd::load_words(minus + v * kWords)};
    }
    const uint64_t* row[kLength + kBlock];  // of the block's columns and as many before it
    const Matches& matches = *columns.matches;
    std::fill_n(row, kLength, matches.words());
    alignas(64) Words equal[kBlock * kChain];
    const int64_t end = columns.count + kLength - 1;
    for (int64_t first = 0; first < end; first += kBlock) {
      const int64_t inside = std::clamp<int64_t>(columns.count - first, 0, kBlock);
      matches.look_up<kLength>(columns.number + first, inside, row + kLength);
      std::fill_n(row + kLength + inside, kBlock - inside, matches.words());
      simd::unroll<kChain>([&](auto v) { shear<kChain>(row + kLength, v, equal); });
      std::copy_n(row + kBlock, kLength, row);
      if (first >= kLength - 1 && first + kBlock <= columns.count) {
        chain.template steps<true>(columns, first, first + kBlock, equal);
      } else {
        chain.template steps<false>(columns, first, std::min(end, first + kBlock), equal);
      }
    }
    for (int v = 0; v < kChain; ++v) {
      simd::store_words(plus + v * kWords, chain.rows_[v].plus);
      simd::store_words(minus + v * kWords, chain.rows_[v].minus);
    }
  }

 private:
  // On a copy of the chain, which stays in registers.
  template <bool kAll>
  void steps(const Columns& columns, int64_t first, int64_t last, const Words* equal) {
    Chain own = *this;
    for (int64_t t = first; t < last; ++t, equal += kChain)
      own.template step<kAll>(columns, t, equal);
    *this = own;
  }

  // Without kAll only those words move whose column is one.
  template <bool kAll>
  [[gnu::always_inline]] void step(const Columns& columns, int64_t t, const Words* equal) {
    const bool inside = kAll || t < columns.count;
    const Words first_stays = simd::words(inside ? columns.stays[t] : 0);
    const Words first_minus = simd::words(inside ? columns.minus[t] : 0);
    simd::unroll<kChain>([&](auto i) __attribute__((always_inline)) {
      constexpr int v = kChain - 1 - i;  // from the end: a vector wants what the one before it had
      const Words stays =
          simd::from_below(stays_[v], v > 0 ? stays_[v > 0 ? v - 1 : 0] : first_stays);
      const Words minus =
          simd::from_below(minus_[v], v > 0 ? minus_[v > 0 ? v - 1 : 0] : first_minus);
      const Rows<Words> before = rows_[v];
      rows_[v].step(equal[v], stays >> 63, minus >> 63, stays_[v], minus_[v]);
      if constexpr (!kAll) hold(before, t - v * kWords, columns.count, rows_[v]);
    });
    const int64_t out = t - (kLength - 1);
    if (kAll || (out >= 0 && out < columns.count)) {
      columns.stays[out] = stays_[kChain - 1][kWords - 1];
      columns.minus[out] = minus_[kChain - 1][kWords - 1];
    }
  }

  // Takes back the step of those words k whose column t - k is none.
  static void hold(const Rows<Words>& before, int64_t t, int64_t columns, Rows<Words>& rows) {
    Words column;
    for (int k = 0; k < kWords; ++k) column[k] = static_cast<uint64_t>(t - k);
    const auto inside = column < simd::words(columns);  // what is below 0 is a large number
    rows.plus = inside ? rows.plus : before.plus;
    rows.minus = inside ? rows.minus : before.minus;
  }

  Rows<Words> rows_[kChain];
  Words stays_[kChain] = {}, minus_[kChain] = {};
};

// Many vectors of words through some columns; `plus` and `minus` as for a chain.
inline void run_chain(int64_t vectors, const Columns& columns, uint64_t* plus, uint64_t* minus) {
  if (vectors == 1) Chain<1>::run(columns, plus, minus);
  if (vectors == 2) Chain<2>::run(columns, plus, minus);
  if (vectors == 3) Chain<std::min(3, kVectors)>::run(columns, plus, minus);
  if (vectors == 4) Chain<kVectors>::run(columns, plus, minus);
}

// A pair, in bands of the longest chain. The tiles of bands and columns may be computed by several
// threads: each needs the one above it and the one to its left.
template <class I>
class LongPair {
 public:
  LongPair(const Sequence<I>& pattern, const Sequence<I>& text)
      : rows_(pattern.n),
        columns_(text.n),
        pattern_(pattern.n),
        text_(text.n),
        above_stays_(text.n, 0),
        above_minus_(text.n, 0),
        plus_(bands() * kVectors * kWords, ~uint64_t{0}),
        minus_(plus_.size(), 0),
        matches_(std::min(bands(), kAtOnce)) {
    numbers_ = number_pair(pattern, text, pattern_.data(), text_.data()) + 1;
  }

  // All tiles, by this thread or by all.
  void run() {
    for (int64_t b = 0; b < bands(); ++b) tile(b, 0, columns_);
  }
  void run(Device& dev) {
    const int64_t width = std::clamp<int64_t>(columns_ / 8, 512, 4096);
    const int64_t tiles = ceil_div(columns_, width);
    for (int64_t first = 0; first < bands(); first += kAtOnce) {
      const int64_t some = std::min(kAtOnce, bands() - first);
      const int64_t steps = some * kBandRows * columns_ / (kBits * kWords) * 16;
      run_phases(dev, some + tiles - 1, some, steps, [&](int64_t, int64_t phase, int64_t b) {
        const int64_t t = phase - b;
        if (t < 0 || t >= tiles) return;
        tile(first + b, t * width, std::min(width, columns_ - t * width));
      });
    }
  }

  // The differences down the last column.
  const uint64_t* plus() const { return plus_.data(); }
  const uint64_t* minus() const { return minus_.data(); }

 private:
  int64_t bands() const { return ceil_div(rows_, kBandRows); }
  int64_t vectors(int64_t band) const {
    const int64_t rows = std::min(kBandRows, rows_ - band * kBandRows);
    return ceil_div(words_for(rows), kWords);
  }

  void tile(int64_t b, int64_t first, int64_t count) {
    Matches& matches = matches_[b % kAtOnce];
    if (first == 0) {
      const int64_t row = b * kBandRows, rows = std::min(kBandRows, rows_ - row);
      matches.find(&pattern_[row], rows, vectors(b) * kWords, numbers_);
    }
    const Columns columns{text_.data() + first, &matches, above_stays_.data() + first,
                          above_minus_.data() + first, count};
    const int64_t word = b * kVectors * kWords;
    run_chain(vectors(b), columns, &plus_[word], &minus_[word]);
  }

  static constexpr int64_t kAtOnce = 32;  // bands under way, each with half a megabyte of matches

  int64_t rows_, columns_, numbers_;
  std::vector<int32_t> pattern_, text_;
  std::vector<uint64_t> above_stays_, above_minus_, plus_, minus_;
  std::vector<Matches> matches_;
};

}  // namespace nativeops::tuned::edits
