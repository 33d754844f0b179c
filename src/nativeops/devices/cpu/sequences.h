// SPDX-License-Identifier: Apache-2.0
// A batch of sequences of different lengths, step by step: at every step those that have one, the
// longest first, so that a step's work is a matrix without gaps. The time is proportional to the
// sum of the lengths, but for zeros beyond them, and nobody has to sort.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "nativeops/devices/cpu/work.h"
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
    scattered_ = layer.order || !std::is_sorted(item_.begin(), item_.end());
    for (int64_t r = 0; r < batch; ++r) length_[r] = layer.length(item_[r]);
    for (int64_t s = 0; s < steps; ++s) first_[s + 1] = first_[s] + count_longer(s);
  }

  int64_t item(int64_t r) const { return item_[r]; }      // its place in the batch
  int64_t length(int64_t r) const { return length_[r]; }  // falls with r
  int64_t longest() const { return batch == 0 ? 0 : length_[0]; }
  int64_t active(int64_t step) const { return step < steps ? first_[step + 1] - first_[step] : 0; }
  int64_t time(int64_t step, int64_t r) const { return layer_.time(step, item_[r]); }
  bool begins_anew(int64_t step, int64_t r) const { return layer_.begins_anew(step, item_[r]); }

  // Whether the sequences of a step lie in an order that no processor foresees.
  bool scattered() const { return scattered_; }

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
  bool scattered_ = false;
};

// Zeros in the frames of sequences that are past their end. Whole rows, one after the other: a part
// of each wherever a step writes its own costs as much as the step of a small layer.
template <class T>
void clear_beyond(Device& dev, const Sequences<T>& seq, const Out<T, 3>& to) {
  const int64_t width = to.size(2), beyond = (seq.steps * seq.batch - seq.frames()) * width;
  if (!to || beyond == 0) return;
  parallel_if_large(dev, seq.steps, beyond, [&](int64_t s) {
    for (int64_t r = seq.active(s); r < seq.batch; ++r) {
      T* const row = &to(seq.time(s, r), seq.item(r), 0);
      if (to.stride(2) == 1) {
        std::fill_n(row, width, T(0));
      } else {
        for (int64_t i = 0; i < width; ++i) row[i * to.stride(2)] = T(0);
      }
    }
  });
}

}  // namespace nativeops::tuned
