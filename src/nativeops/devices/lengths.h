// SPDX-License-Identifier: Apache-2.0
// The lengths of padded sequences, an optional input: without them all are as long as the array.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "nativeops/devices/math.h"
#include "nativeops/devices/view.h"

namespace nativeops {

// The length of one item, kept within bounds where nobody could refuse it.
HOST_DEVICE inline int64_t length_of(In<int32_t, 1> lengths, int64_t item, int64_t most) {
  return lengths ? min2<int64_t>(max2<int64_t>(lengths(item), 0), most) : most;
}

// A length that is none is refused where memory can be read; `bound` says in words what `most` is.
inline void check_lengths(In<int32_t, 1> lengths, const char* name, int64_t most,
                          const char* bound) {
#if !defined(__CUDACC__)
  for (int64_t b = 0; b < lengths.size(0); ++b) {
    const int64_t length = lengths(b);
    if (length >= 0 && length <= most) continue;
    throw std::runtime_error("`" + std::string(name) + "[" + std::to_string(b) + "]` is " +
                             std::to_string(length) + ", but must be from 0 to " +
                             std::to_string(most) + ", " + bound + ".");
  }
#else
  (void)lengths, (void)name, (void)most, (void)bound;
#endif
}

}  // namespace nativeops
