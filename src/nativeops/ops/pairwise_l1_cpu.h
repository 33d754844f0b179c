// SPDX-License-Identifier: Apache-2.0
// Pairwise L1 distance, tuned for the CPU. Declared in pairwise_l1.py.
#pragma once
#include "nativeops/devices/cpu/pairwise_expanded.h"
#include "nativeops/devices/cpu/pairwise_few.h"
#include "nativeops/devices/cpu/pairwise_grad.h"
#if NATIVEOPS_LEVEL >= 2
#include "nativeops/devices/cpu/sign_sums.h"
#endif

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
  V along(V sum, V x, V y) const { return sum + simd::abs(x - y); }
  A across(V sum) const { return simd::sum_of_lanes(sum); }
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
  pairwise_few_or_many(dev, [&](int64_t, int64_t, int64_t) { return sum; }, x, y, out);
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

template <class T>
void pairwise_l1_grad_by_signs(Device& dev, In<T, 3> x, In<T, 3> y, In<T, 3> d_out, Out<T, 3> d_x,
                               Out<T, 3> d_y) {
  if constexpr (NATIVEOPS_LEVEL >= 2) {
    if (simd::adds_apart()) return pairwise_grad(dev, SignTerm<true>(), x, y, d_out, d_x, d_y);
  }
  pairwise_grad(dev, SignTerm<false>(), x, y, d_out, d_x, d_y);
}

#if NATIVEOPS_LEVEL >= 2
template <bool kX, bool kY>
void pairwise_l1_grad_by_ranks(Device& dev, In<float, 3> x, In<float, 3> y, In<float, 3> d_out,
                               Out<float, 3> d_x, Out<float, 3> d_y, const SignPlan& plan) {
  auto memory = dev.workspace<float>(plan.numbers(kY));
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t k = 0; k < x.size(2); k += plan.width) {
      const auto columns = [&](auto of) { return part(at(of, b), 0, of.size(1), k, plan.width); };
      const auto slice_d_x = kX ? columns(d_x) : Out<float, 2>{};
      const auto slice_d_y = kY ? columns(d_y) : Out<float, 2>{};
      if (sign_sums<kX, kY>(dev, plan, columns(x), columns(y), at(d_out, b), slice_d_x, slice_d_y,
                            memory.data())) {
        continue;
      }
      pairwise_l1_grad_by_signs(dev, batch_of_one(columns(x)), batch_of_one(columns(y)),
                                batch_of_one(at(d_out, b)), batch_of_one(slice_d_x),
                                batch_of_one(slice_d_y));
    }
  }
}

// The gradients by ranks, if that pays. Else false.
inline bool pairwise_l1_grad_by_ranks(Device& dev, In<float, 3> x, In<float, 3> y,
                                      In<float, 3> d_out, Out<float, 3> d_x, Out<float, 3> d_y) {
  // The formula is symmetric: the longer of both is divided among threads.
  if (y.size(1) > x.size(1)) std::swap(x, y), std::swap(d_x, d_y), d_out = transpose(d_out);
  const int64_t n = x.size(1), m = y.size(1), d = x.size(2);
  if (!may_rank(x, m)) return false;
  const SignPlan plan(n, m, d);
  if (!ranks_pay(plan, n, m, d) || !probe_ranks(dev, x, y)) return false;
  if (d_x && d_y) {
    pairwise_l1_grad_by_ranks<true, true>(dev, x, y, d_out, d_x, d_y, plan);
  } else if (d_x) {
    pairwise_l1_grad_by_ranks<true, false>(dev, x, y, d_out, d_x, d_y, plan);
  } else if (d_y) {
    pairwise_l1_grad_by_ranks<false, true>(dev, x, y, d_out, d_x, d_y, plan);
  }
  return true;
}
#endif

// d_x[i,k] = Σ_j d_out[i,j] · sign(x[i,k] - y[j,k])
// d_y[j,k] = -Σ_i d_out[i,j] · sign(x[i,k] - y[j,k])
template <class T>
void pairwise_l1_grad(Device& dev, In<T, 3> x, In<T, 3> y, In<T, 3> d_out, Out<T, 3> d_x,
                      Out<T, 3> d_y) {
#if NATIVEOPS_LEVEL >= 2
  if constexpr (std::is_same_v<T, float>) {
    if (pairwise_l1_grad_by_ranks(dev, x, y, d_out, d_x, d_y)) return;
  }
#endif
  pairwise_l1_grad_by_signs(dev, x, y, d_out, d_x, d_y);
}

}  // namespace nativeops::tuned
