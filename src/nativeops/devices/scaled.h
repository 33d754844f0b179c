// SPDX-License-Identifier: Apache-2.0
// Non-negative numbers m · 2^k with an exponent of their own: products of any number of
// probabilities neither underflow nor overflow, and sums need no logarithm.
#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/math.h"

namespace nativeops {

template <class A>
using Exponent = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;

// Zero is m = 0, and its exponent one that no other number has: products of four stay in range.
template <class A>
struct Scale {
  using K = Exponent<A>;
  static constexpr K none = -(K(1) << (8 * sizeof(A) - 3));
  static constexpr K beyond = -none / 2;  // the first exponent that is not held
  static constexpr A largest = sizeof(A) == 4 ? A(2.9e6) : A(1e15);  // |log| of a single number
  static constexpr K bias = sizeof(A) == 4 ? 127 : 1023;
  static constexpr int mantissa = sizeof(A) == 4 ? 23 : 52;
};

template <class A>
struct Scaled {
  A m;
  Exponent<A> k;
};
template <class A>
NATIVEOPS_INLINE Scaled<A> operator*(Scaled<A> a, Scaled<A> b) {
  return {a.m * b.m, a.k + b.k};
}

// 2^k for k <= 1, and 0 where that is no normal number.
template <class A>
NATIVEOPS_INLINE A power_of(Exponent<A> k) {
  const Exponent<A> shown = max2<Exponent<A>>(k + Scale<A>::bias, 0);
  return bit_cast<A>(shown << Scale<A>::mantissa);
}

// The same number with 1 <= m < 2. m must be finite, and 0 or at least the smallest normal number.
// What comes to the largest exponent is beyond, and stays so whatever single number it is
// multiplied with.
template <class A>
NATIVEOPS_INLINE Scaled<A> normalised(Scaled<A> a) {
  using K = Exponent<A>;
  const K bits = bit_cast<K>(a.m), one = Scale<A>::bias << Scale<A>::mantissa;
  // Unsigned: beside m = 0 there may be any exponent.
  using U = std::make_unsigned_t<K>;
  const K k = K(U(a.k) + U(bits >> Scale<A>::mantissa) - U(Scale<A>::bias));
  const A m = bit_cast<A>((bits & ((K(1) << Scale<A>::mantissa) - 1)) | one);
  const bool zero = a.m == 0 || k <= Scale<A>::none;
  return {zero ? A(0) : m, zero                   ? Scale<A>::none
                           : k < Scale<A>::beyond ? k
                                                  : Scale<A>::beyond / 2 * 3};
}

// Whether a product or a sum has come to the largest number that can be held: it may be larger.
template <class A>
NATIVEOPS_INLINE bool is_beyond(Scaled<A> a) {
  return a.k >= Scale<A>::beyond;
}

// Whether e^-cost is a number that can be held: not NaN, and not infinitely large.
template <class A>
NATIVEOPS_INLINE bool is_cost(A cost) {
  return cost >= -Scale<A>::largest;
}

// x = n ln(2) + r and e^r - 1 = r + tail also where n has so many digits that its product with the
// high part of ln(2) has more than a number holds. A device that cannot multiply and subtract at
// once needs all of that product: both numbers in halves, whose products are exact (Dekker 1971).
template <class A>
NATIVEOPS_INLINE elementary::Reduced<A> reduce_far(A x) {
  using F = elementary::Format<A>;
  const A n = elementary::reduce(x).n;
#if defined(__CUDACC__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  const A r = std::fma(-n, F::ln2_lo, std::fma(-n, F::ln2_hi, x));
#else
  const A split = A((int64_t(1) << ((F::mantissa + 2) / 2)) + 1);
  const A n_high = split * n - (split * n - n), n_low = n - n_high;
  const A ln2_high = split * F::ln2_hi - (split * F::ln2_hi - F::ln2_hi);
  const A ln2_low = F::ln2_hi - ln2_high;
  const A product = n * F::ln2_hi;
  const A left = ((n_high * ln2_high - product) + n_low * ln2_high) + n_high * ln2_low;
  const A r = ((x - product) - (left + n_low * ln2_low)) - n * F::ln2_lo;
#endif
  return {n, r, r * r * F::exp_tail(r)};
}

// e^-cost; 0 where the cost is larger than the largest, or NaN. In two steps, since compilers make
// vectors of each, but not of both together.
template <class A>
NATIVEOPS_INLINE Scaled<A> scaled_power(A cost) {
  const A most = Scale<A>::largest, low = cost > most ? most : cost;
  const elementary::Reduced<A> y = reduce_far(low < -most ? most : -low);
  const A m = 1 + (y.r + y.tail);
  return {cost <= most ? m : A(0), static_cast<Exponent<A>>(y.n)};
}
// e^x of what rounding may take from a cost that is held: |x| <= ln(2) / 2.
template <class A>
NATIVEOPS_INLINE A power_of_rest(A x) {
  constexpr A most = A(0x1.62e42fefa39efp-2);
  const A r = min2(max2(x, -most), most);  // of other costs: some finite number
  return 1 + (r + r * r * elementary::Format<A>::exp_tail(r));
}
template <class A>
NATIVEOPS_INLINE Scaled<A> scaled_exp(A cost) {
  return normalised(scaled_power(cost));
}

// -log of the number; infinity of zero.
template <class A>
NATIVEOPS_INLINE A cost_of(Scaled<A> a) {
  const A cost = 0 - (log(a.m) + static_cast<A>(a.k) * A(0x1.62e42fefa39efp-1));
  return a.m == 0 ? highest<A>() : cost;
}
// The same, rounded once, for large ones.
template <class A>
NATIVEOPS_INLINE double long_cost_of(Scaled<A> a) {
  const double k = static_cast<double>(a.k);
  const double cost = 0 - (log(static_cast<double>(a.m)) + k * 0x1.62e42fefa39efp-1);
  return a.m == 0 ? highest<double>() : cost;
}

// Σ term(i) over low <= i < high
template <class A, class F>
NATIVEOPS_INLINE Scaled<A> scaled_sum(int64_t low, int64_t high, F term) {
  Exponent<A> top = Scale<A>::none;  // which keeps the differences in range, too
  for (int64_t i = low; i < high; ++i) top = max2(top, term(i).k);
  A sum = 0;
  for (int64_t i = low; i < high; ++i) {
    const Scaled<A> a = term(i);
    sum += a.m * power_of<A>(max2(a.k, Scale<A>::none) - top);
  }
  return normalised<A>({top == Scale<A>::none ? A(0) : sum, top});
}

constexpr int kTermsAtOnce = 16;
#if !defined(__CUDACC__)
// The same for 0 <= i < n, a multiple of kTermsAtOnce: so many side by side, as vectors.
template <class A, class F>
NATIVEOPS_INLINE Scaled<A> scaled_sum_of_vectors(int64_t n, F term) {
  Exponent<A> top[kTermsAtOnce];
  A sum[kTermsAtOnce];
  for (int p = 0; p < kTermsAtOnce; ++p) top[p] = Scale<A>::none, sum[p] = 0;
  for (int64_t i = 0; i < n; i += kTermsAtOnce) {
    for (int p = 0; p < kTermsAtOnce; ++p) top[p] = max2(top[p], term(i + p).k);
  }
#pragma GCC unroll 4
  for (int half = kTermsAtOnce / 2; half > 0; half /= 2) {
    for (int p = 0; p < half; ++p) top[p] = max2(top[p], top[p + half]);
  }
  const Exponent<A> most = top[0];
  if (most == Scale<A>::none) return {A(0), most};
  for (int64_t i = 0; i < n; i += kTermsAtOnce) {
    for (int p = 0; p < kTermsAtOnce; ++p) {
      const Scaled<A> a = term(i + p);
      sum[p] += a.m * power_of<A>(max2(a.k, Scale<A>::none) - most);
    }
  }
#pragma GCC unroll 4
  for (int half = kTermsAtOnce / 2; half > 0; half /= 2) {
    for (int p = 0; p < half; ++p) sum[p] += sum[p + half];
  }
  return normalised<A>({sum[0], most});
}
#endif

// Σ term(i) over 0 <= i < n, a multiple of kTermsAtOnce, known to all threads of a warp.
template <class A, class Warp, class F>
KERNEL inline __attribute__((always_inline)) Scaled<A> scaled_sum_of_many(Warp warp, int64_t n,
                                                                          F term) {
#if !defined(__CUDACC__)
  if constexpr (Warp::size() == 1) return scaled_sum_of_vectors<A>(n, term);
#endif
  using K = Exponent<A>;
  Scaled<A> own{A(0), Scale<A>::none};
  warp.each(0, n, [&](int64_t i) {
    const Scaled<A> next = term(i);
    const K top = max2(own.k, next.k);
    own = {
        own.m * power_of<A>(own.k - top) + next.m * power_of<A>(max2(next.k, Scale<A>::none) - top),
        top};
  });
  const K top = warp.max(0, warp.size(), [=](int64_t) -> K { return own.k; });
  const A all =
      warp.sum(0, warp.size(), [=](int64_t) -> A { return own.m * power_of<A>(own.k - top); });
  return normalised<A>({top == Scale<A>::none ? A(0) : all, top});
}

}  // namespace nativeops
