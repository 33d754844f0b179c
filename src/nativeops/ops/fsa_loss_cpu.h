// SPDX-License-Identifier: Apache-2.0
// The full-sum loss over automata, and its gradient, with vectors. Declared in fsa_loss.py.
#pragma once
#include "nativeops/devices/cpu/band_passes.h"
#include "nativeops/devices/cpu/both_ends.h"
#include "nativeops/devices/cpu/logit_rows.h"
#include "nativeops/devices/cpu/softmax.h"
#include "nativeops/ops/fsa_loss.h"

namespace nativeops::tuned {

// As nativeops::TeamSoftmax.
struct VectorSoftmax {
  template <class T>
  static void log_sums(Device& dev, In<T, 3> logits, const Places& places, LogSum<Accum<T>>* norm) {
    using A = Accum<T>;
    constexpr int64_t kFrames = 16;
    const int64_t batch = logits.size(1);
    share(
        dev, ceil_div(logits.size(0) * batch, kFrames), logits.count(),
        [&] { return LogitRows<T>(dev, logits); },
        [&](const LogitRows<T>& rows, int64_t task) {
          for_each_frame(logits, task * kFrames, kFrames, [&](int64_t t, int64_t b) {
            LogSum<A>* const to = norm + t * batch + b;
            *to = {0, 0};
            if (t >= places.frames(b) || logits.size(2) == 0) return;
            const auto sums = simd::softmax_sums(rows.at(t, b), logits.size(2));
            if (sums.sum != 0) *to = {sums.largest, log(sums.sum)};
          });
        });
  }
  template <class A>
  static A power(A x) {
    return simd::exp_negative(x);
  }
};

template <class T>
constexpr auto fsa_loss = nativeops::fsa_loss<T, BothEnds<BandPasses<T>>, VectorSoftmax>;
template <class T>
constexpr auto fsa_loss_grad = nativeops::fsa_loss_grad<T, BothEnds<BandPasses<T>>, VectorSoftmax>;

}  // namespace nativeops::tuned
