// SPDX-License-Identifier: Apache-2.0
// Edit distances of all pairs of two sets: a pattern in every word of some vectors, and each text
// goes through them all.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "nativeops/devices/cpu/edit_lanes.h"
#include "nativeops/devices/cpu/transpose.h"

namespace nativeops::tuned::edits {

// Sequences in numbers: those of an alphabet, 0 for labels that it does not have.
struct Numbered {
  std::vector<int32_t> number;
  std::vector<int64_t> begin, length;

  int64_t count() const { return static_cast<int64_t>(length.size()); }
  const int32_t* operator[](int64_t i) const { return number.data() + begin[i]; }
  template <class I, class F>
  Numbered(const std::vector<Sequence<I>>& sequences, F&& number_of) {
    int64_t labels = 0;
    for (const auto& s : sequences) labels += s.n;
    number.resize(labels);
    labels = 0;
    for (const auto& s : sequences) {
      begin.push_back(labels);
      length.push_back(s.n);
      for (int64_t i = 0; i < s.n; ++i) number[labels++] = number_of(s[i]);
    }
  }
};

// kWide vectors of patterns of at most 64·kHeight labels.
template <int kHeight, int kWide>
class PatternBlock {
 public:
  static constexpr int kPatterns = kWide * kWords;

  // The patterns order[first], ...
  PatternBlock(const Numbered& patterns, const int64_t* order, int count, int32_t numbers)
      : patterns_(patterns), order_(order), count_(count), row_of_(numbers, 0) {
    int32_t rows = 1;
    each_label([&](int32_t& row, int, int64_t) {
      if (row == 0) row = rows++;
    });
    memory_.assign(rows * kRow + 8, 0);
    matches_ = memory_.data() + (-reinterpret_cast<uintptr_t>(memory_.data()) % 64) / 8;
    for (int w = 0; w < kHeight; ++w) {
      for (int k = 0; k < kPatterns; ++k) {
        masks_[w * kPatterns + k] = k < count ? rows_in_word(patterns.length[order[k]], w) : 0;
      }
    }
    each_label([&](int32_t& row, int k, int64_t i) {
      const int64_t word = i / kBits * kPatterns + k;
      matches_[row * kRow + word] |= uint64_t{1} << i % kBits;
    });
  }

  // The distance of each pattern to one text.
  void run(const int32_t* text, int64_t n, int32_t* distances) const {
    Lanes<kHeight> lanes[kWide];
    for (int64_t j = 0; j < n; ++j) {
      const uint64_t* row = matches_ + row_of_[text[j]] * kRow;
      simd::unroll<kWide>([&](auto v) __attribute__((always_inline)) {
        lanes[v].template step<kPatterns>(row + v * kWords);
      });
    }
    simd::unroll<kWide>([&](auto v) __attribute__((always_inline)) {
      Words sum = simd::words(static_cast<uint64_t>(n));
      simd::unroll<kHeight>([&](auto w) __attribute__((always_inline)) {
        const Words mask = simd::load_words(masks_ + w * kPatterns + v * kWords);
        sum += sum_down(lanes[v].rows[w].plus, lanes[v].rows[w].minus, mask);
      });
      simd::store_narrow(distances + v * kWords, sum);
    });
  }

 private:
  static constexpr int64_t kRow = kHeight * kPatterns;

  template <class F>
  void each_label(F&& f) {
    for (int k = 0; k < count_; ++k) {
      const int32_t* number = patterns_[order_[k]];
      for (int64_t i = 0; i < patterns_.length[order_[k]]; ++i) f(row_of_[number[i]], k, i);
    }
  }

  const Numbered& patterns_;
  const int64_t* order_;
  const int count_;
  std::vector<int32_t> row_of_;  // of a number, 0 if no pattern has it
  std::vector<uint64_t> memory_;
  uint64_t* matches_;
  alignas(64) uint64_t masks_[kHeight * kPatterns];  // the rows that a pattern has
};

template <class T>
struct Tag {
  using type = T;
};

// As many vectors of patterns as have their differences in half of the registers.
template <int kHeight>
using Widest = PatternBlock<kHeight, std::max(1, (simd::kVectorBytes / 8) / kHeight)>;

// Distances of patterns, kFrom apart, to some texts: from a row for each text to one for each
// pattern, of which a vector writes a part.
template <int64_t kFrom>
void put(const int32_t* distances, int64_t texts, const int64_t* order, int patterns, int64_t first,
         int32_t most, View<int32_t, 2> to) {
  constexpr int kSide = simd::kLanes<int32_t>;
  const auto all = simd::broadcast(most).raw;
  for (int k = 0; k < patterns; k += kSide) {
    simd::Vec<int32_t> square[kSide];
    for (int i = 0; i < kSide; ++i) memcpy(&square[i], distances + i * kFrom + k, sizeof *square);
    simd::transpose(square);
    for (int i = 0; i < std::min(kSide, patterns - k); ++i) {
      const auto row = square[i].raw < all ? square[i].raw : all;
      int32_t* out = &to(order[k + i], first);
      if (to.stride(1) == 1 && texts == kSide) {
        memcpy(out, &row, sizeof row);
      } else {
        for (int64_t j = 0; j < texts; ++j) out[j * to.stride(1)] = row[j];
      }
    }
  }
}

// to(pattern, text), but `most` if it is more, for patterns order[0], ... and texts `first` to
// `last`.
template <class Block>
void run_blocks(const Numbered& patterns, const int64_t* order, int count, int32_t numbers,
                const Numbered& texts, int64_t first, int64_t last, int32_t most,
                View<int32_t, 2> to) {
  constexpr int64_t kTexts = simd::kLanes<int32_t>;
  constexpr int64_t kRow = std::max<int64_t>(Block::kPatterns, kTexts);
  alignas(64) int32_t distances[kTexts * kRow] = {};
  for (int k = 0; k < count; k += Block::kPatterns) {
    const int part = std::min(Block::kPatterns, count - k);
    const Block block(patterns, order + k, part, numbers);
    for (int64_t t = first; t < last; t += kTexts) {
      const int64_t some = std::min(last - t, kTexts);
      for (int64_t i = 0; i < some; ++i) {
        block.run(texts[t + i], texts.length[t + i], distances + i * kRow);
      }
      put<kRow>(distances, some, order + k, part, t, most, to);
    }
  }
}

// to(pattern, text), but `most` if it is more, for all pairs; no pattern has more than kShort
// labels.
template <class I>
void run_all(Device& dev, const std::vector<Sequence<I>>& patterns,
             const std::vector<Sequence<I>>& texts, int32_t most, View<int32_t, 2> to) {
  constexpr int64_t kPart = Widest<1>::kPatterns, kTasks = 32, kFewest = 128;
  Range<I> range;
  int64_t labels = 0;
  for (const auto& p : patterns) range.add(p), labels += p.n;
  Alphabet<I> alphabet(range, labels);
  const Numbered rows(patterns, [&](I label) { return alphabet.add(label); });
  const Numbered columns(texts, [&](I label) { return alphabet.find(label); });
  std::vector<int64_t> order(patterns.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return rows.length[a] < rows.length[b]; });
  const int64_t parts = ceil_div(rows.count(), kPart);
  // Each task makes the tables of its patterns, so it needs many texts.
  const int64_t some = std::max(kFewest, columns.count() * parts / kTasks);
  const int64_t slices = ceil_div(columns.count(), some);
  dev.parallel(parts * slices, [&](int64_t task) {
    const int64_t part = task / slices * kPart, slice = task % slices * some;
    const int count = static_cast<int>(std::min(kPart, rows.count() - part));
    const int64_t last = std::min(columns.count(), slice + some);
    const int64_t* own = order.data() + part;  // the last of them is the longest
    auto run_in = [&](auto block) {
      using Block = typename decltype(block)::type;
      run_blocks<Block>(rows, own, count, alphabet.count() + 1, columns, slice, last, most, to);
    };
    auto run = [&](auto height) {  // a step of one vector takes a fifth of that of eight
      using Wide = Widest<height>;
      2 * count > Wide::kPatterns ? run_in(Tag<Wide>()) : run_in(Tag<PatternBlock<height, 1>>());
    };
    simd::with_one_of<1, 2, 3, 4>(words_for(rows.length[own[count - 1]]), run);
  });
}

}  // namespace nativeops::tuned::edits
