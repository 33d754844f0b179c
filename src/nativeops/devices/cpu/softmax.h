// SPDX-License-Identifier: Apache-2.0
// Softmax over the classes of a frame, on the CPU.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/activations.h"
#include "nativeops/devices/math.h"

namespace nativeops::tuned {

// e^x for x that is hardly above 0: 0 where that is less than any normal number.
NATIVEOPS_INLINE float exp_down(float x) {
  const float bounded = x < -87.0f ? -87.0f : x;
  const float value = simd::exp_within(bounded);
  return x < -87.0f ? 0.0f : value;
}
NATIVEOPS_INLINE double exp_down(double x) { return elementary::exp(x); }

// fold(fold(part, f(0)), f(1)) .. in as many parts as fill some vectors, which are folded in the
// end: their number is the same for every instruction set, and so the result.
template <class A, class F, class Fold>
[[gnu::flatten]] inline A fold_row(int64_t n, A init, F f, Fold fold) {
  constexpr int kParts = 64;
  alignas(64) A part[kParts];
  for (A& p : part) p = init;
  int64_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (int p = 0; p < kParts; ++p) part[p] = fold(part[p], f(i + p));
  }
  for (; i + 16 <= n; i += 16) {
    for (int p = 0; p < 16; ++p) part[p] = fold(part[p], f(i + p));
  }
  for (int p = 0; i + p < n; ++p) part[p] = fold(part[p], f(i + p));
#pragma GCC unroll 8
  for (int step = kParts / 2; step > 0; step /= 2) {
    for (int p = 0; p < step; ++p) part[p] = fold(part[p], part[p + step]);
  }
  return part[0];
}

// log Σ exp(x[i]); 0 where all are -infinity, NaN where one is NaN or infinite.
template <class T>
double log_sum(const T* x, int64_t n) {
  using A = Accum<T>;
  const A most = fold_row<A>(
      n, lowest<A>(), [=](int64_t i) { return A(x[i]); }, [](A a, A b) { return b > a ? b : a; });
  if (most == lowest<A>()) {
    for (int64_t i = 0; i < n; ++i) {
      if (A(x[i]) != A(x[i])) return A(x[i]);
    }
    return 0;
  }
  const A sum = fold_row<A>(
      n, A(0), [=](int64_t i) { return exp_down(A(x[i]) - most); }, [](A a, A b) { return a + b; });
  return static_cast<double>(most) + log(static_cast<double>(sum));
}

}  // namespace nativeops::tuned
