// SPDX-License-Identifier: Apache-2.0
// A layer in both directions, and two layers, as two calls of a kernel (glue.py): what each of them
// gets of an array, and when both run at once.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "nativeops/devices/kernel.h"
#if !defined(__CUDACC__) && !defined(NATIVEOPS_CPU_THREADS)
#include "nativeops/devices/cpu/progress.h"
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

// What one layer makes and the other reads: a result where it is wanted, else memory of its own.
template <class T>
struct Between {
  const Workspace<T> memory;
  const Out<T, 3> made;

  Between(Device& dev, Out<T, 3> result, int64_t steps, int64_t batch, int64_t width)
      : memory(dev.template workspace<T>(result ? 0 : steps * batch * width)),
        made(result ? result
                    : Out<T, 3>{memory.data(), {steps, batch, width}, {batch * width, width, 1}}) {}

  In<T, 3> read() const {
    return {made.data,
            {made.size(0), made.size(1), made.size(2)},
            {made.stride(0), made.stride(1), made.stride(2)}};
  }
};

// How many numbers each step multiplies, for all sequences.
template <class T>
int64_t products_of_step(In<T, 3> x, std::initializer_list<In<T, 2>> weights) {
  int64_t count = 0;
  for (const In<T, 2>& each : weights) count += each.count();
  return x.size(1) * count;
}

// body(dev, second) for both directions; on the CPU small ones are computed at once, a thread each.
template <class F>
void both_directions(Device& dev, [[maybe_unused]] int64_t steps,
                     [[maybe_unused]] int64_t products_of_step, F&& body) {
#if !defined(__CUDACC__) && !defined(NATIVEOPS_CPU_THREADS)
  if (tuned::worth_a_thread_each(dev, steps, products_of_step, products_of_step)) {
    return dev.spread(2, [&](int64_t direction) {
      Device alone = dev.alone();
      body(alone, direction == 1);
    });
  }
#endif
  body(dev, false);
  body(dev, true);
}

// body(dev, turn) for turn 0 and 1: the layer that is computed first, and the one that reads what
// it makes. On the CPU small ones are computed at once, a thread each: the second follows the first
// by a few steps, as tuned kernels can (cpu/progress.h). first, second: the numbers that a step
// multiplies in each.
template <class F>
void two_layers(Device& dev, [[maybe_unused]] int64_t steps, [[maybe_unused]] int64_t first,
                [[maybe_unused]] int64_t second, F&& body) {
#if !defined(__CUDACC__) && !defined(NATIVEOPS_CPU_THREADS) && NATIVEOPS_LEVEL > 0
  constexpr int64_t kFewSteps = 16;  // of which hardly any would be computed at once
  if (steps >= kFewSteps && tuned::worth_a_thread_each(dev, steps, first, second)) {
    tuned::Progress progress;
    return dev.spread(2, [&](int64_t turn) {
      Device alone = dev.alone();
      (turn == 0 ? alone.after : alone.before) = &progress;
      const tuned::EndOfProgress ends(alone.after);
      body(alone, static_cast<int>(turn));
    });
  }
#endif
  body(dev, 0);
  body(dev, 1);
}

}  // namespace nativeops
