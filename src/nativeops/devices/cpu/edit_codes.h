// SPDX-License-Identifier: Apache-2.0
// Labels of edit distances as small numbers: any labels become codes that are equal where they are.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "nativeops/devices/view.h"

namespace nativeops::tuned::edits {

// The first `n` labels of a sequence, and where they lie.
template <class I>
struct Sequence {
  const I* data;
  int64_t stride, n;

  I operator[](int64_t i) const { return data[i * stride]; }
};

// The least and the largest label, of no label the other way round.
template <class I>
struct Range {
  I low = std::numeric_limits<I>::max(), high = std::numeric_limits<I>::min();

  void add(const Sequence<I>& labels) {
    I least = low, most = high;  // which the compiler keeps in registers
    auto fold = [&](int64_t stride) {
      for (int64_t i = 0; i < labels.n; ++i) {
        const I label = labels.data[i * stride];
        least = label < least ? label : least;
        most = label > most ? label : most;
      }
    };
    labels.stride == 1 ? fold(1) : fold(labels.stride);  // the first becomes vectors
    low = least, high = most;
  }
  // The greatest code if `low` has the code 0.
  uint64_t span() const {
    return high < low ? 0 : static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  }
};

// f(i) for parts of 16 from i on that cover 0 ≤ i < n; the last two of them may overlap. False if
// there are too few.
template <class F>
[[gnu::always_inline]] inline bool in_parts(int64_t n, F f) {
  if (n < 16) return false;
  for (int64_t i = 0; i + 16 <= n; i += 16) f(i);
  if (n % 16 != 0) f(n - 16);
  return true;
}

// Bits that some labels of many sequences have, 16 labels at a time.
template <class I>
class Bits {
 public:
  void add(const Sequence<I>& labels) {
    const auto fold = [&](int64_t i) {
      for (int p = 0; p < 16; ++p) part_[p] |= labels.data[i + p];
    };
    if (labels.stride == 1 && in_parts(labels.n, fold)) return;
    for (int64_t i = 0; i < labels.n; ++i) part_[0] |= labels[i];
  }
  std::make_unsigned_t<I> all() const {
    I bits = 0;
    for (const I part : part_) bits |= part;
    return static_cast<std::make_unsigned_t<I>>(bits);
  }

 private:
  alignas(64) I part_[16] = {};
};

// codes[i] = labels[i] - low
template <class Code, class I>
void write_codes(const Sequence<I>& labels, I low, Code* codes) {
  using U = std::make_unsigned_t<I>;
  const U base = static_cast<U>(low);
  const auto code = [=](I label) { return static_cast<Code>(static_cast<U>(label) - base); };
  const auto write = [&](int64_t i) {
    for (int p = 0; p < 16; ++p) codes[i + p] = code(labels.data[i + p]);
  };
  if (labels.stride == 1 && in_parts(labels.n, write)) return;
  for (int64_t i = 0; i < labels.n; ++i) codes[i] = code(labels[i]);
}

// Numbers for the labels of some sequences: 1, 2, .. in the order in which they are added. They are
// looked up in a table where their range is small, and else hashed.
template <class I>
class Alphabet {
 public:
  Alphabet(const Range<I>& range, int64_t labels) : low_(range.low), span_(range.span()) {
    direct_ = span_ < 4096 + 4 * static_cast<uint64_t>(labels);
    size_t slots = 16;
    while (slots < 2 * static_cast<size_t>(labels) + 2) slots *= 2;
    number_.assign(direct_ ? span_ + 1 : slots, 0);
    if (!direct_) key_.resize(slots);
  }

  int32_t add(I label) {
    int32_t& number = number_[slot(label)];
    if (number == 0) {
      number = ++count_;
      if (!direct_) key_[static_cast<size_t>(&number - number_.data())] = label;
    }
    return number;
  }
  // 0 if it was not added.
  int32_t find(I label) const {
    if (direct_ && static_cast<uint64_t>(label) - static_cast<uint64_t>(low_) > span_) return 0;
    return number_[slot(label)];
  }
  int32_t count() const { return count_; }

 private:
  // Where a label is, or the free place where it would be.
  size_t slot(I label) const {
    const uint64_t code = static_cast<uint64_t>(label) - static_cast<uint64_t>(low_);
    if (direct_) return static_cast<size_t>(code);
    const size_t mask = number_.size() - 1;
    size_t place = static_cast<size_t>((code * 0x9e3779b97f4a7c15u) >> 32) & mask;
    while (number_[place] != 0 && key_[place] != label) place = (place + 1) & mask;
    return place;
  }

  I low_;
  uint64_t span_;
  bool direct_;
  int32_t count_ = 0;
  std::vector<int32_t> number_;
  std::vector<I> key_;
};

// A pair in codes of 32 bits, the pattern padded to whole words of 64 labels.
struct CodedPair {
  std::vector<uint32_t> pattern, text;

  template <class I>
  CodedPair(const Sequence<I>& rows, const Sequence<I>& columns)
      : pattern((rows.n + 63) / 64 * 64), text(columns.n) {
    Range<I> range;
    range.add(rows);
    range.add(columns);
    if (range.span() <= UINT32_MAX) {
      write_codes(rows, range.low, pattern.data());
      write_codes(columns, range.low, text.data());
      return;
    }
    Alphabet<I> alphabet(range, rows.n);
    for (int64_t i = 0; i < rows.n; ++i) pattern[i] = alphabet.add(rows[i]);
    for (int64_t j = 0; j < columns.n; ++j) text[j] = alphabet.find(columns[j]);
  }
};

}  // namespace nativeops::tuned::edits
