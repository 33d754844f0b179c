// SPDX-License-Identifier: Apache-2.0
// Values of integer inputs that a kernel cannot work with.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "nativeops/devices/view.h"

namespace nativeops {

// Refuses the first number that is not from `low` to `high`, of those that are taken, where memory
// can be read from here; on CUDA a kernel must keep within bounds by itself. `bound` says what the
// upper bound is.
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
      throw std::runtime_error(std::string("`") + name + "[" + first + std::to_string(column) +
                               "]` is " + std::to_string(number) + ", but must be from " +
                               std::to_string(low) + " to " + std::to_string(high) + ", " + bound +
                               ".");
    }
  }
#endif
}

}  // namespace nativeops
