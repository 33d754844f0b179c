// SPDX-License-Identifier: Apache-2.0
// Edit distances of all pairs of two sets: a pattern in every word of some vectors, and each text
// goes through them all.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "nativeops/devices/cpu/edit_lanes.h"

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

  // distances[k·stride] for one text.
  void run(const int32_t* text, int64_t n, int64_t stride, int32_t* distances) const {
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
      for (int k = 0; k < kWords; ++k) {
        distances[(v * kWords + k) * stride] = static_cast<int32_t>(sum[k]);
      }
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

// put(pattern, text, distance) for some patterns and texts. The distances of several texts are put
// one beside the other: in a table whose rows are the patterns' they share a cache line.
template <class F>
void run_block(const Numbered& patterns, const int64_t* order, int count, int32_t numbers,
               const Numbered& texts, int64_t first, int64_t last, F&& put) {
  auto run = [&](const auto& block, const int64_t* own, int many) {
    constexpr int64_t kTexts = 16;
    int32_t distances[4 * kWords * kTexts];
    for (int64_t t = first; t < last; t += kTexts) {
      const int64_t end = std::min(last, t + kTexts);
      for (int64_t i = t; i < end; ++i) {
        block.run(texts[i], texts.length[i], kTexts, distances + (i - t));
      }
      for (int k = 0; k < many; ++k) {
        for (int64_t i = t; i < end; ++i) put(own[k], i, distances[k * kTexts + i - t]);
      }
    }
  };
  int64_t height = 1;
  for (int k = 0; k < count; ++k) height = std::max(height, words_for(patterns.length[order[k]]));
  auto in_parts = [&](auto of) {
    using Block = decltype(of);
    for (int k = 0; k < count; k += Block::type::kPatterns) {
      const int part = std::min<int>(Block::type::kPatterns, count - k);
      run(typename Block::type(patterns, order + k, part, numbers), order + k, part);
    }
  };
  if (height == 1) return in_parts(Tag<PatternBlock<1, 4>>{});
  if (height == 2) return in_parts(Tag<PatternBlock<2, 2>>{});
  if (height == 3) return in_parts(Tag<PatternBlock<3, 1>>{});
  in_parts(Tag<PatternBlock<4, 1>>{});
}

// put(pattern, text, distance) for all pairs; no pattern has more than kShort labels.
template <class I, class F>
void run_all(Device& dev, const std::vector<Sequence<I>>& patterns,
             const std::vector<Sequence<I>>& texts, F&& put) {
  constexpr int64_t kPart = 4 * kWords, kTexts = 128;
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
  const int64_t parts = (rows.count() + kPart - 1) / kPart;
  const int64_t slices = (columns.count() + kTexts - 1) / kTexts;
  dev.parallel(parts * slices, [&](int64_t task) {
    const int64_t part = task / slices * kPart, slice = task % slices * kTexts;
    run_block(rows, order.data() + part, static_cast<int>(std::min(kPart, rows.count() - part)),
              alphabet.count() + 1, columns, slice, std::min(columns.count(), slice + kTexts), put);
  });
}

}  // namespace nativeops::tuned::edits
