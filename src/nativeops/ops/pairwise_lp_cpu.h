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

// The least sum of d squares of which none that counts was lost.
template <class A>
A least_sum(int64_t d) {
  using Limits = std::numeric_limits<A>;
  return Limits::min() / Limits::epsilon() * static_cast<A>(d);
}

// s + d^2, and the root of it all. A sum so large or so small that squares may have been lost is
// formed again with care.
template <class T>
struct SquareSum {
  using A = Accum<T>;
  using V = simd::Vec<A>;
  static constexpr A kMost = std::numeric_limits<A>::max();
  In<T, 2> x, y;

  V start(int64_t, int64_t, int64_t) const { return simd::zero<A>(); }
  V add(V sum, V y, const A* x) const {
    const V difference = simd::sub(y, x);
    return simd::fma(difference, difference, sum);
  }
  V join(V sum, V more) const { return sum + more; }
  V finish(V sum, int64_t i, int64_t j, int64_t count) const {
    if (simd::all_within(sum, least_sum<A>(x.size(1)), kMost)) return simd::sqrt(sum);
    return with_care(sum, i, j, count);
  }
  [[gnu::noinline]] V with_care(V sum, int64_t i, int64_t j, int64_t count) const {
    const A low = least_sum<A>(x.size(1));
    alignas(64) A lane[simd::kLanes<A>];
    simd::store(lane, simd::sqrt(sum));
    for (int64_t l = 0; l < std::min<int64_t>(count, simd::kLanes<A>); ++l) {
      if (sum.raw[l] >= low && sum.raw[l] <= kMost) continue;
      lane[l] = rescaled_norm<A>(at(x, i), at(y, j + l));
    }
    return simd::load(lane);
  }
};

// (x - y)^2 = x^2 + y^2 - 2 xy: one operation for each pair instead of two.
template <class A>
struct ProductSum {
  using V = simd::Vec<A>;

  static V own(V a) { return a * a; }
  static V distance(V a, V b) { return (a - b) * (a - b); }
  V add_shared(V sum, V y, const A* x) const { return simd::fma(y, x, sum); }
  static V finish(V sum) { return simd::sqrt(sum); }
  template <class T>
  static A by_itself(In<T, 1> x, In<T, 1> y) {
    const A sum = sum_of_pair<ProductSum>(x, y).distance;
    const bool lost = !(sum >= least_sum<A>(x.size(0)) && sum <= std::numeric_limits<A>::max());
    return lost ? rescaled_norm<A>(x, y) : std::sqrt(sum);
  }
};

// max(s, |d|)
template <class A>
struct LargestDifference {
  using V = simd::Vec<A>;

  V start(int64_t, int64_t, int64_t) const { return simd::zero<A>(); }
  V add(V largest, V y, const A* x) const {
    return simd::max_unsigned(largest, simd::abs(simd::sub(y, x)));
  }
  V join(V largest, V other) const { return simd::max_unsigned(largest, other); }
  V finish(V largest, int64_t, int64_t, int64_t) const { return largest; }
};

// out[i,j] = (Σ_k |x[i,k] - y[j,k]|^p)^(1/p), the largest difference where p = ∞
template <class T>
void pairwise_lp(Device& dev, In<T, 3> x, In<T, 3> y, Out<T, 3> out, double p) {
  if (p == 1) return tuned::pairwise_l1(dev, x, y, out);
  if (p == 2) {
    if (pairwise_expanded(dev, ProductSum<Accum<T>>(), x, y, out)) return;
    const auto formula = [&](int64_t b, int64_t i, int64_t j) {
      const int64_t n = x.size(1), m = y.size(1), d = x.size(2);
      return SquareSum<T>{part(at(x, b), i, n, 0, d), part(at(y, b), j, m, 0, d)};
    };
    return pairwise_fold(dev, formula, x, y, out);
  }
  if (is_limit<Accum<T>>(p)) {
    const auto formula = [](int64_t, int64_t, int64_t) { return LargestDifference<Accum<T>>(); };
    return pairwise_fold(dev, formula, x, y, out);
  }
  nativeops::pairwise_lp<T>(dev, x, y, out, p);
}

}  // namespace nativeops::tuned
