// SPDX-License-Identifier: Apache-2.0
// Both directions of a layer as two calls of its kernel (glue.py): what each of them gets of an
// array, and when both run at once.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "nativeops/devices/kernel.h"
#if !defined(__CUDACC__) && !defined(NATIVEOPS_CPU_THREADS)
#include "nativeops/devices/cpu/work.h"
#endif

namespace nativeops {

// A direction's part of an array that has one behind the other along the last axis.
template <class T, int N>
View<T, N> half_of(View<T, N> both, bool second) {
  both.size_[N - 1] /= 2;
  if (second && both) both.data += both.size(N - 1) * both.stride(N - 1);
  return both;
}

// A result that is the sum of what both directions make: the second has its own memory until then.
template <class T>
struct SumOfBoth {
  const Workspace<T> memory;
  const Out<T, 3> first, second;

  SumOfBoth(Device& dev, Out<T, 3> to)
      : memory(dev.template workspace<T>(to ? to.count() : 0)),
        first(to),
        second{memory.data(),
               {to.size(0), to.size(1), to.size(2)},
               {to.size(1) * to.size(2), to.size(2), 1}} {}

  Out<T, 3> of(bool is_second) const { return is_second ? second : first; }
  void finish(Device& dev) const {
    if (!first) return;
    const Out<T, 3> to = first, more = second;
    for_each(dev, to, [=] KERNEL(int64_t t, int64_t b, int64_t i) {
      to(t, b, i) = T(Accum<T>(to(t, b, i)) + Accum<T>(more(t, b, i)));
    });
  }
};

// How many numbers each step of a direction multiplies, for all sequences.
template <class T>
int64_t products_of_step(In<T, 3> x, std::initializer_list<In<T, 2>> weights) {
  int64_t count = 0;
  for (const In<T, 2>& each : weights) count += each.count();
  return x.size(1) * count;
}

// body(dev, second) for both directions. On the CPU a thread takes each of them where one after the
// other would take as long with all threads, which meet after each step, and where a step's weights
// leave room in a cache: two layers of 64 units then take 1.6 to 1.9 times as long as one; of 256
// units it would be 2.2 to 2.5 times (two threads, Zen5 EPYC, 2026-11).
template <class F>
void both_directions(Device& dev, [[maybe_unused]] int64_t steps,
                     [[maybe_unused]] int64_t products_of_step, F&& body) {
#if !defined(__CUDACC__) && !defined(NATIVEOPS_CPU_THREADS)
  constexpr int64_t kLanes = 16, kMost = 16384;
  const int64_t each = products_of_step / kLanes, threads = dev.num_threads();
  const bool small = each <= min2(kMost, 2 * (each / threads + tuned::kWorthMeeting));
  if (threads > 1 && small && tuned::worth_sharing(dev, 2 * steps * each)) {
    return dev.parallel(2, [&](int64_t direction) {
      Device alone = dev.alone();
      body(alone, direction == 1);
    });
  }
#endif
  body(dev, false);
  body(dev, true);
}

}  // namespace nativeops
