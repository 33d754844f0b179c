// SPDX-License-Identifier: Apache-2.0
// Values of integer inputs that a kernel refuses before it computes: lengths, labels, states. They
// are looked at where memory can be read; on CUDA that would make the host wait, so there kernels
// keep within bounds by themselves.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "nativeops/devices/math.h"
#include "nativeops/devices/view.h"

namespace nativeops {

#if defined(__CUDACC__)
constexpr bool kHostReads = false;
#else
constexpr bool kHostReads = true;
#endif

// "targets[1, 2]"
template <class... Index>
std::string element(const std::string& name, int64_t first, Index... others) {
  std::string text = name + "[" + std::to_string(first);
  ((text += ", " + std::to_string(others)), ...);
  return text + "]";
}

// "`lengths[1]` is 7, but must be from 0 to 5, the steps of `x`."
[[noreturn]] inline void refuse(const std::string& what, int64_t value, const std::string& must) {
  throw std::runtime_error("`" + what + "` is " + std::to_string(value) + ", but " + must + ".");
}
[[noreturn]] inline void refuse(const std::string& what, int64_t value, int64_t low, int64_t high,
                                const std::string& bound) {
  const std::string range =
      high < low ? "there is none"
                 : "must be from " + std::to_string(low) + " to " + std::to_string(high);
  refuse(what, value, range + ", " + bound);
}
[[noreturn]] inline void refuse_label(const std::string& what, int64_t label, int64_t last,
                                      const std::string& bound) {
  if (label < 0 || label > last) refuse(what, label, 0, last, bound);
  refuse(what, label, "that is `blank`, which stands between targets");
}

// Refuses the first number that is not from `low` to `high`, of those that are taken. `bound` says
// what the upper bound is.
template <class I, int N>
void check_range(const char* name, const In<I, N>& numbers, int64_t low, int64_t high,
                 const char* bound, const In<bool, N>& taken = {}) {
  static_assert(N == 1 || N == 2, "numbers in a row, or in rows");
  if constexpr (kHostReads) {
    if (!numbers) return;
    const int64_t rows = N == 2 ? numbers.size(0) : 1, columns = numbers.size(N - 1);
    const auto place = [](const auto& view, int64_t row, int64_t column) {
      return view.data + (N == 2 ? row * view.stride(0) : 0) + column * view.stride(N - 1);
    };
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t number = static_cast<int64_t>(*place(numbers, row, column));
        if (number >= low && number <= high) continue;
        if (taken && !*place(taken, row, column)) continue;
        refuse(N == 2 ? element(name, row, column) : element(name, column), number, low, high,
               bound);
      }
    }
  }
}

// No label, for what takes the blank among labels.
constexpr int64_t kNoBlank = -1;

// Refuses labels that are not from 0 to the last class, or are the blank.
template <class I>
void check_labels(const char* name, const In<I, 1>& labels, int64_t blank, int64_t last,
                  const char* bound) {
  if constexpr (kHostReads) {
    for (int64_t i = 0; i < labels.size(0); ++i) {
      const int64_t label = labels(i);
      if (label < 0 || label > last || label == blank)
        refuse_label(element(name, i), label, last, bound);
    }
  }
}

// Kept from 0 to `most`, where nobody could refuse it.
HOST_DEVICE inline int64_t within(int64_t value, int64_t most) {
  return max2<int64_t>(0, min2(value, most));
}

// One of the optional lengths of padded sequences.
template <class I>
HOST_DEVICE int64_t length_of(const In<I, 1>& lengths, int64_t item, int64_t most) {
  return lengths ? within(lengths(item), most) : most;
}

// The same as above for the first lengths[row] labels of each row.
template <class I>
void check_labels(const char* name, const In<I, 2>& labels, const In<int32_t, 1>& lengths,
                  int64_t blank, int64_t last, const char* bound) {
  if constexpr (kHostReads) {
    for (int64_t row = 0; row < labels.size(0); ++row) {
      const int64_t count = length_of(lengths, row, labels.size(1));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t label = labels(row, i);
        if (label < 0 || label > last || label == blank)
          refuse_label(element(name, row, i), label, last, bound);
      }
    }
  }
}

}  // namespace nativeops
