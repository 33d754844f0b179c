// SPDX-License-Identifier: Apache-2.0
// Weights of any size: products of thousands of probabilities, which no float can hold. What a
// logarithm does for range this does, too, but sums cost no exp and no log, and the relative error
// of a number does not grow with how small it is.
#pragma once
#include "nativeops/devices/elementary.h"
#include "nativeops/devices/math.h"

namespace nativeops {

// m · 2^e with an integer e; m is in [1, 2) after a product, and grows in sums. Zero is e =
// -infinity, NaN is e = NaN, whatever m.
template <class A>
struct Wide {
  A m, e;
};

template <class A>
NATIVEOPS_INLINE Wide<A> wide_zero() {
  return {A(1), lowest<A>()};
}
template <class A>
NATIVEOPS_INLINE Wide<A> wide_one() {
  return {A(1), A(0)};
}

// 2^d for an integer d <= 127 (1023): 0 if it is too small for a number, and for NaN.
template <class A>
NATIVEOPS_INLINE A scale_of(A d) {
  constexpr A least = -elementary::Format<A>::bias;
  return elementary::power_of_two(d > least ? d : least);
}

template <class A>
NATIVEOPS_INLINE Wide<A> operator+(Wide<A> a, Wide<A> b) {
  const A e = max_or_nan(a.e, b.e);
  return {a.m * scale_of(a.e - e) + b.m * scale_of(b.e - e), e};
}

// a + b + c
template <class A>
NATIVEOPS_INLINE Wide<A> sum(Wide<A> a, Wide<A> b, Wide<A> c) {
  const A e = max_or_nan(a.e, max_or_nan(b.e, c.e));
  return {a.m * scale_of(a.e - e) + b.m * scale_of(b.e - e) + c.m * scale_of(c.e - e), e};
}

// The product's factor is taken apart by its bits: as in elementary::log, without a conversion.
template <class A>
NATIVEOPS_INLINE Wide<A> operator*(Wide<A> a, Wide<A> b) {
  using F = elementary::Format<A>;
  using Bits = typename F::Bits;
  constexpr Bits fraction = (Bits(1) << F::mantissa) - 1;
  const Bits bits = bit_cast<Bits>(a.m * b.m), one = bit_cast<Bits>(A(1));
  const Bits integer = bit_cast<Bits>(F::round) + (bits >> F::mantissa);
  const A exponent = bit_cast<A>(integer) - (F::round + F::bias);
  return {bit_cast<A>((bits & fraction) | one), (a.e + b.e) + exponent};
}

// e^x for any x but +infinity. From 2^22 (2^51) on a number has no digits left for a fraction of e.
template <class A>
NATIVEOPS_INLINE Wide<A> wide_exp(A x) {
  constexpr A most = elementary::Format<A>::round / 3;
  const A e = x * A(0x1.71547652b82fep+0);
  const bool near = e > -most && e < most;
  const elementary::Reduced<A> y = elementary::reduce(near ? x : A(0));
  return {1 + (y.r + y.tail), near ? y.n : e};
}

// The natural logarithm.
template <class A>
NATIVEOPS_INLINE double log_of(Wide<A> a) {
  return static_cast<double>(a.e) * 0x1.62e42fefa39efp-1 + log(static_cast<double>(a.m));
}

// The quotient as a plain number, where that can hold it.
template <class A>
NATIVEOPS_INLINE A ratio(Wide<A> a, Wide<A> b) {
  return a.m / b.m * scale_of(a.e - b.e);
}

}  // namespace nativeops
