// SPDX-License-Identifier: Apache-2.0
// Pairwise L1 distance, tuned for the CPU. Declared in pairwise_l1.py.
#pragma once
#include "nativeops/devices/cpu/pairwise_expanded.h"
#include "nativeops/devices/cpu/pairwise_grad.h"

namespace nativeops::tuned {

// s + |y - x|. The sum is an fma because some CPUs, Zen4 for one, multiply in other units than they
// add in: subtraction and sum then run side by side. It rounds as an addition does.
template <class A>
struct AbsoluteSum {
  using V = simd::Vec<A>;
  V one = simd::broadcast(A(1));
  AbsoluteSum() { simd::keep(one); }  // a known factor of one would be made an addition again

  V start(int64_t, int64_t, int64_t) const { return simd::zero<A>(); }
  V add(V sum, V y, const A* x) const { return simd::fma(simd::abs(simd::sub(y, x)), one, sum); }
  V join(V sum, V more) const { return sum + more; }
  V finish(V sum, int64_t, int64_t, int64_t) const { return sum; }
};

// |x - y| = x + y - 2 min(x, y): two operations for each pair instead of three.
template <class A>
struct SmallerSum {
  using V = simd::Vec<A>;
  V one = simd::broadcast(A(1));
  SmallerSum() { simd::keep(one); }

  static V own(V a) { return a; }
  static V distance(V a, V b) { return simd::abs(a - b); }
  V add_shared(V sum, V y, const A* x) const { return simd::fma(simd::smaller(y, x), one, sum); }
  static V finish(V sum) { return sum; }
  template <class T>
  static A by_itself(In<T, 1> x, In<T, 1> y) {
    return sum_of_pair<SmallerSum>(x, y).distance;
  }
};

// out[i,j] = Σ_k |x[i,k] - y[j,k]|
template <class T>
void pairwise_l1(Device& dev, In<T, 3> x, In<T, 3> y, Out<T, 3> out) {
  using A = Accum<T>;
  if (pairwise_expanded(dev, SmallerSum<A>(), x, y, out)) return;
  const AbsoluteSum<A> sum;
  pairwise_fold(dev, [&](int64_t, int64_t, int64_t) { return sum; }, x, y, out);
}

// g·sign(x - y), into d_x and out of d_y. On CPUs that add apart, two rows of three use a product
// and two additions instead of two fma: sign, product and fma share units there, and so all are
// equally busy. It rounds the same.
template <bool kAddsApart>
struct SignTerm {
  template <int kRow, bool kX, bool kY, class V, class A>
  void add(V x, V y, const A* g, V& d_x, V& d_y) const {
    const V s = simd::sign(x - y);
    if constexpr (kAddsApart && kX && kY && kRow % 3 != 0) {
      const V t = simd::mul(s, g);
      d_x = d_x + t;
      d_y = d_y - t;
    } else {
      if constexpr (kX) d_x = simd::fma(s, g, d_x);
      if constexpr (kY) d_y = simd::fnma(s, g, d_y);
    }
  }
};

// d_x[i,k] = Σ_j d_out[i,j] · sign(x[i,k] - y[j,k])
// d_y[j,k] = -Σ_i d_out[i,j] · sign(x[i,k] - y[j,k])
template <class T>
void pairwise_l1_grad(Device& dev, In<T, 3> x, In<T, 3> y, In<T, 3> d_out, Out<T, 3> d_x,
                      Out<T, 3> d_y) {
  if constexpr (NATIVEOPS_LEVEL >= 2) {
    if (simd::adds_apart()) return pairwise_grad(dev, SignTerm<true>(), x, y, d_out, d_x, d_y);
  }
  pairwise_grad(dev, SignTerm<false>(), x, y, d_out, d_x, d_y);
}

}  // namespace nativeops::tuned
