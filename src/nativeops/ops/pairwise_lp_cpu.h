// SPDX-License-Identifier: Apache-2.0
// Pairwise Lp distance, tuned for the CPU where p is 1, 2 or infinity. Declared in pairwise_lp.py.
#pragma once
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "nativeops/devices/cpu/lanes.h"
#include "nativeops/devices/cpu/pairwise.h"
#include "nativeops/devices/cpu/pairwise_grad.h"
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
  V along(V sum, V x, V y) const { return simd::fma(x - y, x - y, sum); }
  A across(V sum) const { return simd::sum_of_lanes(sum); }
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
  V along(V largest, V x, V y) const { return join(largest, simd::abs(x - y)); }
  A across(V largest) const {  // as integers: a NaN is the largest
    using Int = typename V::Int;
    const Lanes<Int, simd::kLanes<A>> lanes{simd::bits(largest)};
    const Int most = fold_lanes(lanes, [](auto a, auto b) { return a > b ? a : b; });
    A number;
    std::memcpy(&number, &most, sizeof number);
    return number;
  }
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
    return pairwise_few_or_many(dev, formula, x, y, out);
  }
  if (is_limit<Accum<T>>(p)) {
    const auto formula = [](int64_t, int64_t, int64_t) { return LargestDifference<Accum<T>>(); };
    return pairwise_few_or_many(dev, formula, x, y, out);
  }
  nativeops::pairwise_lp<T>(dev, x, y, out, p);
}

// g·(x - y), into d_x and out of d_y.
struct DifferenceTerm {
  template <int, bool kX, bool kY, class V, class A>
  void add(V x, V y, const A* g, V& d_x, V& d_y) const {
    const V e = x - y;
    if constexpr (kX) d_x = simd::fma(e, g, d_x);
    if constexpr (kY) d_y = simd::fnma(e, g, d_y);
  }
};

// to[i,j] = d_out[i,j] / out[i,j], and 0 where out is 0: one division for each pair of vectors.
// False if a quotient left the range of numbers that have all their digits, or out does.
template <class T, class A>
bool slopes_of_pairs(Device& dev, In<T, 3> out, In<T, 3> d_out, Out<A, 3> to) {
  using Limits = std::numeric_limits<A>;
  std::atomic<bool> fits{true};
  const int64_t rows = out.size(1), m = out.size(2);
  parallel_if_large(dev, out.size(0) * rows, out.count(), [&](int64_t row) {
    const int64_t b = row / rows, i = row % rows;
    bool lost = false;
    for (int64_t j = 0; j < m; ++j) {
      const A distance = A(out(b, i, j)), slope = A(d_out(b, i, j));
      const A quotient = distance == 0 ? A(0) : slope / distance;
      const A size = std::abs(quotient);
      lost |= (size < Limits::min() && distance != 0 && slope != 0) || size > Limits::max();
      lost |= distance > Limits::max();
      to(b, i, j) = quotient;
    }
    if (lost) fits.store(false, std::memory_order_relaxed);
  });
  return fits.load(std::memory_order_relaxed);
}

template <class T>
void pairwise_lp_grad(Device& dev, In<T, 3> x, In<T, 3> y, In<T, 3> out, In<T, 3> d_out,
                      Out<T, 3> d_x, Out<T, 3> d_y, double p) {
  using A = Accum<T>;
  if (p == 1) return tuned::pairwise_l1_grad(dev, x, y, d_out, d_x, d_y);
  constexpr int64_t kMost = (int64_t{256} << 20) / sizeof(A);  // more would be a burden
  if (p == 2 && out.count() <= kMost) {
    Scratch<A, 4096> memory(dev, out.count());
    const auto slopes = dense(memory.data(), out.size(0), out.size(1), out.size(2));
    if (slopes_of_pairs(dev, out, d_out, slopes))
      return pairwise_grad(dev, DifferenceTerm(), x, y, In<A, 3>(slopes), d_x, d_y);
  }
  nativeops::pairwise_lp_grad<T>(dev, x, y, out, d_out, d_x, d_y, p);
}

}  // namespace nativeops::tuned
