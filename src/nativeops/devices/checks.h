// SPDX-License-Identifier: Apache-2.0
// Values that a kernel refuses, before it computes: lengths, labels, states. They are looked at
// where memory can be read; on CUDA that would make the host wait, so there kernels keep within
// bounds.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "nativeops/devices/view.h"

namespace nativeops {

// "`lengths[1]` is 7, but must be from 0 to 5, the steps of `x`."
[[noreturn]] inline void refuse(const std::string& what, int64_t value, int64_t low, int64_t high,
                                const char* of) {
  const std::string range =
      high < low ? "there is none"
                 : "must be from " + std::to_string(low) + " to " + std::to_string(high);
  throw std::runtime_error("`" + what + "` is " + std::to_string(value) + ", but " + range + ", " +
                           of + ".");
}

template <class I>
void check_values(const char* name, In<I, 1> values, int64_t low, int64_t high, const char* of) {
#if !defined(__CUDACC__)
  for (int64_t i = 0; values && i < values.size(0); ++i) {
    if (values(i) >= low && values(i) <= high) continue;
    refuse(std::string(name) + "[" + std::to_string(i) + "]", values(i), low, high, of);
  }
#else
  (void)name, (void)values, (void)low, (void)high, (void)of;
#endif
}

// The first n labels: from 0 to the last class, and not the blank. where(i) names one.
template <class I, class F>
void check_labels(In<I, 1> labels, int64_t n, int64_t blank, int64_t last, const char* of,
                  F where) {
#if !defined(__CUDACC__)
  for (int64_t i = 0; i < n; ++i) {
    const int64_t label = labels(i);
    if (label < 0 || label > last) refuse(where(i), label, 0, last, of);
    if (label != blank) continue;
    throw std::runtime_error("`" + where(i) + "` is " + std::to_string(label) +
                             ", but that is `blank`, which stands between targets.");
  }
#else
  (void)labels, (void)n, (void)blank, (void)last, (void)of, (void)where;
#endif
}

// A length of an optional array of them, within bounds in any case.
template <class I>
HOST_DEVICE int64_t length_of(const In<I, 1>& lengths, int64_t b, int64_t most) {
  if (!lengths) return most;
  const int64_t length = lengths(b);
  return length < 0 ? 0 : length > most ? most : length;
}

}  // namespace nativeops
