// SPDX-License-Identifier: Apache-2.0
// Weights of any size: products of thousands of probabilities, which no float can hold. What a
// logarithm does for range this does, too, but sums cost no exp and no log, and the relative error
// of a number does not grow with how small it is.
#pragma once
#include "nativeops/devices/elementary.h"
#include "nativeops/devices/logarithm.h"
#include "nativeops/devices/math.h"

namespace nativeops {

// m · 2^e with an integer e; m is in [1, 2) after a product, and grows in sums. Zero is e =
// -infinity, NaN is e = NaN, whatever m. In double precision whatever the op's dtype is: exponents
// of thousands of frames are added up, and must stay exact to their last digit.
struct Wide {
  double m, e;
};

NATIVEOPS_INLINE Wide wide_zero() { return {1, lowest<double>()}; }
NATIVEOPS_INLINE Wide wide_one() { return {1, 0}; }

// 2^d for an integer d <= 1023: 0 if it is too small for a number, and for NaN.
NATIVEOPS_INLINE double scale_of(double d) {
  constexpr double least = -elementary::Format<double>::bias;
  return elementary::power_of_two(d > least ? d : least);
}

NATIVEOPS_INLINE Wide operator+(Wide a, Wide b) {
  const double e = max_or_nan(a.e, b.e);
  return {a.m * scale_of(a.e - e) + b.m * scale_of(b.e - e), e};
}

// a + b + c
NATIVEOPS_INLINE Wide sum(Wide a, Wide b, Wide c) {
  const double e = max_or_nan(a.e, max_or_nan(b.e, c.e));
  return {a.m * scale_of(a.e - e) + b.m * scale_of(b.e - e) + c.m * scale_of(c.e - e), e};
}

// The product's factor is taken apart by its bits: as in elementary::log, without a conversion.
NATIVEOPS_INLINE Wide operator*(Wide a, Wide b) {
  using F = elementary::Format<double>;
  using Bits = F::Bits;
  constexpr Bits fraction = (Bits(1) << F::mantissa) - 1;
  const Bits bits = bit_cast<Bits>(a.m * b.m), one = bit_cast<Bits>(1.0);
  const Bits integer = bit_cast<Bits>(F::round) + (bits >> F::mantissa);
  const double exponent = bit_cast<double>(integer) - (F::round + F::bias);
  return {bit_cast<double>((bits & fraction) | one), (a.e + b.e) + exponent};
}

// e^x for any x but +infinity. Beyond 2^36 (6.9e10) as of that: a double has room for the exponents
// of 90 000 such factors.
NATIVEOPS_INLINE Wide wide_exp(double x) {
  constexpr double most = kMostLogarithm;
  const double low = x > -most ? x : -most;
  const elementary::Reduced<double> y = elementary::reduce(low < most ? low : most);
  return {1 + (y.r + y.tail), x >= -Extreme<double>::most ? y.n : x};
}

// The natural logarithm.
NATIVEOPS_INLINE double log_of(Wide a) { return a.e * 0x1.62e42fefa39efp-1 + log(a.m); }

// The quotient as a plain number, where that can hold it.
NATIVEOPS_INLINE double ratio(Wide a, Wide b) { return a.m / b.m * scale_of(a.e - b.e); }

}  // namespace nativeops
