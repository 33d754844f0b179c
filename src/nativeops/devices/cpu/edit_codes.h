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

// Bits that some label has.
template <class I>
class UsedBits {
 public:
  void add(const Sequence<I>& labels) {
    I bits = bits_;  // which the compiler keeps in registers
    const auto fold = [&](int64_t stride) {
      for (int64_t i = 0; i < labels.n; ++i) bits |= labels.data[i * stride];
    };
    labels.stride == 1 ? fold(1) : fold(labels.stride);  // the first becomes vectors
    bits_ = bits;
  }
  std::make_unsigned_t<I> all() const { return static_cast<std::make_unsigned_t<I>>(bits_); }

 private:
  I bits_ = 0;
};

// codes[i] = labels[i] - low
template <class Code, class I>
void write_codes(Sequence<I> labels, I low, Code* __restrict codes) {
  using U = std::make_unsigned_t<I>;
  const U base = static_cast<U>(low);
  const I* __restrict from = labels.data;  // a code of one byte might else be part of anything
  const int64_t n = labels.n;
  const auto write = [=](int64_t stride) {
    for (int64_t i = 0; i < n; ++i) {
      codes[i] = static_cast<Code>(static_cast<U>(from[i * stride]) - base);
    }
  };
  labels.stride == 1 ? write(1) : write(labels.stride);
}

// Numbers for the labels of some sequences: 1, 2, .. in the order in which they are added. They are
// looked up in a table where their range is small, and else hashed.
template <class I>
class Alphabet {
 public:
  Alphabet(const Range<I>& range, int64_t labels) : low_(range.low), span_(range.span()) {
    direct_ = span_ < 4096 + 4 * static_cast<uint64_t>(labels);
    size_t slots = 16;
    shift_ = 64 - 4;
    while (slots < 2 * static_cast<size_t>(labels) + 2) slots *= 2, --shift_;
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
    // The upper bits of the product depend on all bits of the code, whatever its factors are.
    auto place = static_cast<size_t>((code * 0x9e3779b97f4a7c15u) >> shift_);
    while (number_[place] != 0 && key_[place] != label) place = (place + 1) & mask;
    return place;
  }

  I low_;
  uint64_t span_;
  bool direct_;
  int shift_;
  int32_t count_ = 0;
  std::vector<int32_t> number_;
  std::vector<I> key_;
};

// A pair's labels as numbers, the same where labels are the same; 0 in the text for what is not in
// the pattern. Returns the largest number.
template <class I, class Code>
int32_t number_pair(const Sequence<I>& pattern, const Sequence<I>& text, Code* rows,
                    Code* columns) {
  Range<I> range;
  range.add(pattern);
  Alphabet<I> alphabet(range, pattern.n);
  for (int64_t i = 0; i < pattern.n; ++i) rows[i] = alphabet.add(pattern[i]);
  for (int64_t j = 0; j < text.n; ++j) columns[j] = alphabet.find(text[j]);
  return alphabet.count();
}

// A pair in codes of 32 bits, the pattern padded to whole words of 64 labels.
struct CodedPair {
  std::vector<uint32_t> pattern, text;

  template <class I>
  CodedPair(const Sequence<I>& rows, const Sequence<I>& columns)
      : pattern(round_up(rows.n, 64)), text(columns.n) {
    Range<I> range;
    range.add(rows);
    range.add(columns);
    if (range.span() <= UINT32_MAX) {
      write_codes(rows, range.low, pattern.data());
      write_codes(columns, range.low, text.data());
      return;
    }
    number_pair(rows, columns, pattern.data(), text.data());
  }
};

}  // namespace nativeops::tuned::edits
