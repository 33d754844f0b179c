// SPDX-License-Identifier: Apache-2.0
// A batch of sequences of different lengths, step by step: at every step those that have one, the
// longest first, so that a step's work is a matrix without gaps. The time is proportional to the
// sum of the lengths, and nobody has to sort.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "nativeops/devices/recurrent.h"

namespace nativeops::tuned {

template <class T>
class Sequences {
 public:
  const int64_t steps, batch;  // steps of the arrays: no sequence is longer

  explicit Sequences(const Layer<T>& layer)
      : steps(layer.steps()),
        batch(layer.batch()),
        layer_(layer),
        item_(batch),
        length_(batch),
        first_(steps + 1) {
    std::iota(item_.begin(), item_.end(), 0);
    if (layer.lengths) {
      std::stable_sort(item_.begin(), item_.end(),
                       [&](int64_t a, int64_t b) { return layer.lengths(a) > layer.lengths(b); });
    }
    for (int64_t r = 0; r < batch; ++r) length_[r] = layer.length(item_[r]);
    for (int64_t s = 0; s < steps; ++s) first_[s + 1] = first_[s] + count_longer(s);
  }

  int64_t item(int64_t r) const { return item_[r]; }      // its place in the batch
  int64_t length(int64_t r) const { return length_[r]; }  // falls with r
  int64_t active(int64_t step) const { return step < steps ? first_[step + 1] - first_[step] : 0; }
  int64_t time(int64_t step, int64_t r) const { return layer_.time(step, item_[r]); }
  bool begins_anew(int64_t step, int64_t r) const { return layer_.begins_anew(step, item_[r]); }

  // All steps of all sequences, numbered step by step.
  int64_t frames() const { return first_[steps]; }
  int64_t frame(int64_t step, int64_t r) const { return first_[step] + r; }

 private:
  int64_t count_longer(int64_t step) const {
    return std::partition_point(length_.begin(), length_.end(),
                                [&](int64_t length) { return length > step; }) -
           length_.begin();
  }

  const Layer<T>& layer_;
  std::vector<int64_t> item_, length_, first_;
};

}  // namespace nativeops::tuned
