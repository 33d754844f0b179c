// SPDX-License-Identifier: Apache-2.0
// Rows of a softmax in vectors: the largest number, the sum of exponentials relative to it, and
// those exponentials again. A row is read from memory once; the later passes find it in the caches.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/activations.h"
#include "nativeops/devices/cpu/lanes.h"
#include "nativeops/devices/logarithm.h"
#include "nativeops/devices/math.h"

namespace nativeops::simd {

// e^x for x <= 0, within an ulp; 0 instead of a number below the smallest normal one, and for
// -infinity. NaN stays NaN.
NATIVEOPS_INLINE float exp_negative(float x) {
  const float result = exp_within(x < -87.0f ? -87.0f : x);
  return x < -87.0f ? 0.0f : result;
}
NATIVEOPS_INLINE double exp_negative(double x) { return elementary::exp(x); }

template <class T>
NATIVEOPS_INLINE Vec<T> exp_negative(Vec<T> a) {
  return map(a, [](T x) __attribute__((always_inline)) { return exp_negative(x); });
}

template <class T>
NATIVEOPS_INLINE Vec<T> larger(Vec<T> a, Vec<T> b) {
  return {a.raw > b.raw ? a.raw : b.raw};
}

// The first `count` lanes of a, the others of b.
template <class T>
NATIVEOPS_INLINE Vec<T> first_of(Vec<T> a, Vec<T> b, int64_t count) {
  typename Vec<T>::Bits lane;
  for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
  return {lane < static_cast<typename Vec<T>::Int>(count) ? a.raw : b.raw};
}

template <class T>
NATIVEOPS_INLINE T sum_of_lanes(Vec<T> a) {
  return fold_lanes(Lanes<T, kLanes<T>>{a.raw}, [](auto a, auto b) { return a + b; });
}
template <class T>
NATIVEOPS_INLINE T largest_of_lanes(Vec<T> a) {
  return fold_lanes(Lanes<T, kLanes<T>>{a.raw}, [](auto a, auto b) { return a > b ? a : b; });
}

// A NaN does not count for the largest, and makes the sum NaN. keep(k, e, n) takes the exponentials
// of the n numbers from the k-th on.
template <class T, class Keep>
NATIVEOPS_INLINE SoftmaxSums<Accum<T>> softmax_sums(const T* row, int64_t count, Keep keep) {
  using A = Accum<T>;
  using V = Vec<A>;
  constexpr int n = kLanes<A>;
  constexpr A kLowest = Extreme<A>::lowest;
  const int64_t whole = count / n * n, rest = count - whole;
  const V lowest_lanes = broadcast(kLowest);
  V tail = lowest_lanes, most[2] = {lowest_lanes, lowest_lanes};
  if (rest > 0) tail = first_of(load(row + whole, rest), lowest_lanes, rest);
  for (int64_t k = 0; k < whole; k += 2 * n) {
    most[0] = larger(load(row + k, n), most[0]);
    if (k + n < whole) most[1] = larger(load(row + k + n, n), most[1]);
  }
  const A largest = largest_of_lanes(larger(tail, larger(most[0], most[1])));
  const V shift = broadcast(largest == kLowest ? A(0) : largest);
  V sum[2] = {zero<A>(), exp_negative(tail - shift)};
  if (rest > 0) keep(whole, sum[1], rest);
  for (int64_t k = 0; k < whole; k += 2 * n) {
    for (int64_t i = 0; i < 2 && k + i * n < whole; ++i) {
      const V e = exp_negative(load(row + k + i * n, n) - shift);
      sum[i] = sum[i] + e;
      keep(k + i * n, e, n);
    }
  }
  return {largest, sum_of_lanes(sum[0] + sum[1])};
}
template <class T>
SoftmaxSums<Accum<T>> softmax_sums(const T* row, int64_t count) {
  return softmax_sums(row, count, [](int64_t, const auto&, int64_t) {});
}

}  // namespace nativeops::simd
