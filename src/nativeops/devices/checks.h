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

// "`lengths[1]` is 7, but must be from 0 to 5, the steps of `x`."
[[noreturn]] inline void refuse(const std::string& what, int64_t value, int64_t low, int64_t high,
                                const char* bound) {
  const std::string range =
      high < low ? "there is none"
                 : "must be from " + std::to_string(low) + " to " + std::to_string(high);
  throw std::runtime_error("`" + what + "` is " + std::to_string(value) + ", but " + range + ", " +
                           bound + ".");
}

// Refuses the first number that is not from `low` to `high`, of those that are taken. `bound` says
// what the upper bound is.
template <class I, int N>
void check_range([[maybe_unused]] const char* name, [[maybe_unused]] const In<I, N>& numbers,
                 [[maybe_unused]] int64_t low, [[maybe_unused]] int64_t high,
                 [[maybe_unused]] const char* bound,
                 [[maybe_unused]] const In<bool, N>& taken = {}) {
  static_assert(N == 1 || N == 2, "numbers in a row, or in rows");
#if !defined(__CUDACC__)
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
      const std::string first = N == 2 ? std::to_string(row) + ", " : "";
      refuse(name + ("[" + first) + std::to_string(column) + "]", number, low, high, bound);
    }
  }
#endif
}

// The first n labels: from 0 to the last class, and not the blank. where(i) names one.
template <class I, class F>
void check_labels([[maybe_unused]] In<I, 1> labels, [[maybe_unused]] int64_t n,
                  [[maybe_unused]] int64_t blank, [[maybe_unused]] int64_t last,
                  [[maybe_unused]] const char* bound, [[maybe_unused]] F where) {
#if !defined(__CUDACC__)
  for (int64_t i = 0; i < n; ++i) {
    const int64_t label = labels(i);
    if (label < 0 || label > last) refuse(where(i), label, 0, last, bound);
    if (label != blank) continue;
    throw std::runtime_error("`" + where(i) + "` is " + std::to_string(label) +
                             ", but that is `blank`, which stands between targets.");
  }
#endif
}

// One of the optional lengths of padded sequences, kept within bounds where nobody could refuse it.
template <class I>
HOST_DEVICE int64_t length_of(const In<I, 1>& lengths, int64_t item, int64_t most) {
  return lengths ? min2<int64_t>(max2<int64_t>(lengths(item), 0), most) : most;
}

}  // namespace nativeops
