// SPDX-License-Identifier: Apache-2.0
// Reading the logits of all frames of a batch, in any layout.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nativeops/devices/kernel.h"

namespace nativeops::tuned {

// f(t, b) of so many frames of all sequences, along the batch or along time: whichever is nearer in
// memory.
template <class T, class F>
void for_each_frame(In<T, 3> logits, int64_t first, int64_t count, F f) {
  const int64_t steps = logits.size(0), batch = logits.size(1);
  const bool by_time = logits.stride(0) < logits.stride(1);
  const int64_t end = std::min(first + count, steps * batch);
  for (int64_t r = first; r < end; ++r) {
    by_time ? f(r % steps, r / steps) : f(r / batch, r % batch);
  }
}

// The classes of a frame side by side: where they are, or copied.
template <class T>
class LogitRows {
 public:
  LogitRows(Device& dev, In<T, 3> logits)
      : logits_(logits), copy_(dev.workspace<T>(logits.stride(2) == 1 ? 0 : logits.size(2))) {}

  const T* at(int64_t t, int64_t b) const {
    if (copy_.data() == nullptr) return &logits_(t, b, 0);
    for (int64_t c = 0; c < logits_.size(2); ++c) copy_[c] = logits_(t, b, c);
    return copy_.data();
  }

 private:
  In<T, 3> logits_;
  Workspace<T> copy_;
};

}  // namespace nativeops::tuned
