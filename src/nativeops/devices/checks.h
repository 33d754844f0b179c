// SPDX-License-Identifier: Apache-2.0
// Values of integer inputs that a kernel cannot work with.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "nativeops/devices/view.h"

namespace nativeops {

// Refuses the first number that is not from `low` to `high` where memory can be read from here; on
// CUDA a kernel must keep it within bounds by itself. `place` is where the number is, as in
// "lengths[3", and `what` says what the upper bound is.
template <class I>
void check_range([[maybe_unused]] const std::string& place, [[maybe_unused]] const In<I, 1>& numbers,
                 [[maybe_unused]] int64_t low, [[maybe_unused]] int64_t high,
                 [[maybe_unused]] const char* what) {
#if !defined(__CUDACC__)
  for (int64_t i = 0; numbers && i < numbers.size(0); ++i) {
    const int64_t number = static_cast<int64_t>(numbers(i));
    if (number >= low && number <= high) continue;
    throw std::runtime_error("`" + place + std::to_string(i) + "]` is " + std::to_string(number) +
                             ", but must be from " + std::to_string(low) + " to " +
                             std::to_string(high) + ", " + what + ".");
  }
#endif
}

}  // namespace nativeops
