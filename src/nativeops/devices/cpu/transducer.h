// SPDX-License-Identifier: Apache-2.0
// The rows of a transducer's lattice on the CPU, a vector of classes at a time; threads share the
// frames. Its sums over paths are those of every device.
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/cpu/softmax.h"
#include "nativeops/devices/transducer.h"

namespace nativeops::tuned {

// f(b, t) for every frame of every sequence, a few at a time for each thread.
template <class F>
void for_each_frame(Device& dev, int64_t batch, int64_t frames, F f) {
  for_parts_of_items(dev, batch * frames, [&](int64_t low, int64_t high) {
    for (int64_t i = low; i < high; ++i) f(i / frames, i % frames);
  });
}

template <class T, class I>
void statistics(Device& dev, const transducer::Joint<T, I>& joint, const Out<Accum<T>, 4>& cells,
                bool normalises) {
  const auto& logits = joint.logits;
  if (logits.stride(3) != 1 || logits.size(3) == 0 || !normalises) {
    return transducer::statistics(dev, joint, cells, normalises);
  }
  for_each_frame(dev, joint.batch(), logits.size(1), [&](int64_t b, int64_t t) {
    if (t >= joint.frames(b)) return;
    for (int64_t u = 0; u <= joint.labels(b); ++u) {
      const auto sums = simd::softmax_sums(&logits(b, t, u, 0), logits.size(3));
      transducer::put_cell(joint, cells, true, b, t, u, sums.largest, sums.sum);
    }
  });
}

// One row of the gradient: scale·e^(logits - shift); what blank and label take follows.
template <bool kStreams, class T>
void gradient_row(const T* logits, T* d_logits, int64_t count, Accum<T> scale, Accum<T> shift) {
  using A = Accum<T>;
  constexpr int n = simd::kLanes<A>;
  const auto times = simd::broadcast(scale), from = simd::broadcast(shift);
  for (int64_t k = 0; k < count; k += n) {
    const auto value = times * simd::exp_negative(simd::load(logits + k, count - k) - from);
    if constexpr (!std::is_same_v<A, T>) {
      alignas(64) A lane[n];
      simd::store(lane, value);
      for (int64_t i = 0; i < min2<int64_t>(n, count - k); ++i) d_logits[k + i] = T(lane[i]);
    } else if (kStreams && count - k >= n) {
      simd::stream(d_logits + k, value);
    } else {
      simd::store(d_logits + k, value, count - k);
    }
  }
}

template <class T, class I>
void gradient(Device& dev, const transducer::Joint<T, I>& joint, const Out<Accum<T>, 4>& cells,
              const Out<Accum<T>, 4>& leaving, const transducer::Flow<T>& flow) {
  using A = Accum<T>;
  const auto& logits = joint.logits;
  const auto& d_logits = flow.d_logits;
  const int64_t classes = logits.size(3);
  const bool dense = logits.stride(3) == 1 && d_logits.stride(3) == 1 && classes > 0;
  if (!dense || !flow.normalises || flow.clamp > 0) {
    return transducer::gradient(dev, joint, cells, leaving, flow);
  }
  constexpr int64_t kCaches = int64_t{16} << 20;  // bytes; beyond, what is written goes past them
  const bool large = d_logits.count() * static_cast<int64_t>(sizeof(T)) > kCaches;
  for_each_frame(dev, joint.batch(), logits.size(1), [&](int64_t b, int64_t t) {
    const auto steps = transducer::steps_of(joint, b);
    const A d_cost = A(flow.d_costs(b));
    for (int64_t u = 0; u < logits.size(2); ++u) {
      T* to = &d_logits(b, t, u, 0);
      const bool passes = steps.passes(t, u);
      const A by_blank = passes ? leaving(b, 0, t, u) : A(0);
      const A by_label = passes ? leaving(b, 1, t, u) : A(0);
      if (by_blank + by_label == 0) {
        for (int64_t k = 0; k < classes; ++k) to[k] = T(A(0));
        continue;
      }
      const A shift = cells(b, int{transducer::kShift}, t, u);
      const A scale = d_cost * ((by_blank + by_label) / cells(b, int{transducer::kSum}, t, u));
      const T* from = &logits(b, t, u, 0);
      const bool aligned = reinterpret_cast<uintptr_t>(to) % simd::kVectorBytes == 0;
      if (large && aligned)
        gradient_row<true>(from, to, classes, scale, shift);
      else
        gradient_row<false>(from, to, classes, scale, shift);
      // In half precision, too, what is rounded is the difference.
      auto take = [&](int64_t k, A taken) {
        to[k] = T(scale * simd::exp_negative(A(from[k]) - shift) - taken * d_cost);
      };
      take(joint.blank(), by_blank);
      if (u < steps.labels) take(joint.label(b, u), by_label);
    }
    if (large) simd::settle();
  });
}

}  // namespace nativeops::tuned
