// SPDX-License-Identifier: Apache-2.0
// Pairwise Lp distance, tuned for the CPU where p is 1, 2 or infinity. Declared in pairwise_lp.py.
#pragma once
#include <cmath>
#include <limits>

#include "nativeops/devices/cpu/pairwise.h"
#include "nativeops/ops/pairwise_l1_cpu.h"
#include "nativeops/ops/pairwise_lp.h"

namespace nativeops::tuned {

// sqrt(Σ_k d_k^2) = c · sqrt(Σ_k (d_k / c)^2), c a power of two near the largest |d_k|: no square
// overflows or is lost. In two factors, since 1 / c may be too large for one number.
template <class A, class T>
A rescaled_norm(In<T, 1> x, In<T, 1> y) {
  A largest = 0;
  for (int64_t k = 0; k < x.size(0); ++k) {
    const A d = std::abs(static_cast<A>(x(k)) - static_cast<A>(y(k)));
    if (d != d) return d;
    largest = std::max(largest, d);
  }
  if (largest == 0 || largest > std::numeric_limits<A>::max()) return largest;
  int exponent;
  std::frexp(largest, &exponent);
  const A first = std::ldexp(A(1), -(exponent / 2));
  const A second = std::ldexp(A(1), -(exponent - exponent / 2));
  A sum = 0;
  for (int64_t k = 0; k < x.size(0); ++k) {
    const A d = (static_cast<A>(x(k)) - static_cast<A>(y(k))) * first * second;
    sum += d * d;
  }
  return std::sqrt(sum) / first / second;
}

// s + d^2, and the root of it all. A sum so large or so small that squares may have been lost is
// formed again with care.
template <class A>
struct SquareSum {
  using V = simd::Vec<A>;
  using Limits = std::numeric_limits<A>;
  static constexpr bool kFinal = false;

  V add(V sum, V difference) const { return simd::fma(difference, difference, sum); }
  V join(V sum, V more) const { return sum + more; }

  template <class T>
  void finish(In<T, 2> x, In<T, 2> y, Sums<A> sums, int64_t rows, int64_t cols) const {
    const A low = Limits::min() / Limits::epsilon() * static_cast<A>(x.size(1));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; j += simd::kLanes<A>) {
        A* at = sums.data + i * sums.width + j;
        const int64_t count = std::min<int64_t>(simd::kLanes<A>, cols - j);
        const V sum = simd::load(at, count);
        simd::store(at, simd::sqrt(sum), count);
        if (simd::all_within(sum, low, Limits::max())) continue;
        for (int64_t lane = 0; lane < count; ++lane) {
          if (sum.raw[lane] >= low && sum.raw[lane] <= Limits::max()) continue;
          at[lane] = rescaled_norm<A>(nativeops::at(x, i), nativeops::at(y, j + lane));
        }
      }
    }
  }
};

// max(s, |d|)
template <class A>
struct LargestDifference {
  using V = simd::Vec<A>;
  static constexpr bool kFinal = true;

  V add(V largest, V difference) const {
    return simd::max_unsigned(largest, simd::abs(difference));
  }
  V join(V largest, V other) const { return simd::max_unsigned(largest, other); }
  template <class T>
  void finish(In<T, 2>, In<T, 2>, Sums<A>, int64_t, int64_t) const {}
};

// out[i,j] = (Σ_k |x[i,k] - y[j,k]|^p)^(1/p), the largest difference where p = ∞
template <class T>
void pairwise_lp(Device& dev, In<T, 3> x, In<T, 3> y, Out<T, 3> out, double p) {
  if (p == 1) return tuned::pairwise_l1(dev, x, y, out);
  if (p == 2) return pairwise_fold(dev, SquareSum<Accum<T>>(), x, y, out);
  if (std::isinf(p)) return pairwise_fold(dev, LargestDifference<Accum<T>>(), x, y, out);
  nativeops::pairwise_lp<T>(dev, x, y, out, p);
}

}  // namespace nativeops::tuned
