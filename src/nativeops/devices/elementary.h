// SPDX-License-Identifier: Apache-2.0
// exp, log, log1p, tanh, sigmoid and erf for float and double without branches, tables or calls.
// Denormals, infinities, NaN and -0 are right. The polynomials are minimax fits (Remez, 2026-11);
// their errors are below 2^-31 in float and 2^-61 in double, relative to the term that they
// complete; those of erf below 2^-29 and 2^-55, relative to erf.
#pragma once
#include <cstdint>
#include <limits>

#include "nativeops/devices/half.h"

#if defined(__GNUC__) && !defined(__CUDACC__)
#define NATIVEOPS_INLINE inline __attribute__((always_inline))
#else
#define NATIVEOPS_INLINE HOST_DEVICE inline
#endif

namespace nativeops {

// The smaller and the larger of two numbers. If one is NaN the result is b: use them where there is
// none, or where it does not matter.
template <class T>
NATIVEOPS_INLINE T min2(T a, T b) {
  return a < b ? a : b;
}
template <class T>
NATIVEOPS_INLINE T max2(T a, T b) {
  return a > b ? a : b;
}

namespace elementary {

// c0 + c1 x + c2 x^2 + ...
template <class T>
NATIVEOPS_INLINE T polynomial(T, T c0) {
  return c0;
}
template <class T, class... Rest>
NATIVEOPS_INLINE T polynomial(T x, T c0, Rest... rest) {
  return c0 + x * polynomial(x, rest...);
}

template <class T>
struct Format;

template <>
struct Format<float> {
  using Bits = uint32_t;
  static constexpr int mantissa = 23;
  static constexpr float bias = 127;
  static constexpr float round = 0x1.8p23f;      // adding and subtracting it rounds to an integer
  static constexpr float ln2_hi = 0x1.62e3p-1f;  // n * ln2_hi is exact for every exponent n
  static constexpr float ln2_lo = 0x1.2fefa2p-17f;
  static constexpr float exp_max = 90, exp_min = -105;  // beyond them infinity and zero
  static constexpr float tanh_one = 9.5f;               // tanh rounds to 1 from here on
  static constexpr float erf_one = 3.95f;               // and erf
  static constexpr float denormal_scale = 0x1p23f;

  // (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2
  static NATIVEOPS_INLINE float exp_tail(float r) {
    return polynomial(r, 0x1p-1f, 0x1.555556p-3f, 0x1.5554aep-5f, 0x1.11109p-7f, 0x1.6d74e4p-10f,
                      0x1.a1a1bep-13f);
  }
  // (log((1 + s) / (1 - s)) - 2 s) / s^3 for z = s^2, (1 + s) / (1 - s) in [sqrt(1/2), sqrt(2)]
  static NATIVEOPS_INLINE float log_tail(float z) {
    return polynomial(z, 0x1.555554p-1f, 0x1.999a7cp-2f, 0x1.24387ap-2f, 0x1.e3053cp-3f);
  }
  // erf(x) / x - 1 for z = x^2 <= 1
  static NATIVEOPS_INLINE float erf_tail(float z) {
    return polynomial(z, 0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2ce6p-4f, -0x1.b7f71ap-6f,
                      0x1.53f224p-8f, -0x1.a3515ep-11f, 0x1.4771fep-14f);
  }
  // log(1 - erf(x)) for 1 <= x <= erf_one
  static NATIVEOPS_INLINE float log_erfc(float x) {
    return polynomial(x, -0x1.662528p-12f, -0x1.2088e8p+0f, -0x1.46baf8p-1f, -0x1.a652dp-4f,
                      0x1.65ca5ap-6f, -0x1.82581cp-9f, 0x1.86d75ep-13f);
  }
};

template <>
struct Format<double> {
  using Bits = uint64_t;
  static constexpr int mantissa = 52;
  static constexpr double bias = 1023;
  static constexpr double round = 0x1.8p52;
  static constexpr double ln2_hi = 0x1.62e42feep-1;
  static constexpr double ln2_lo = 0x1.a39ef35793c76p-33;
  static constexpr double exp_max = 711, exp_min = -747;
  static constexpr double tanh_one = 19.5;
  static constexpr double erf_one = 5.95;
  static constexpr double denormal_scale = 0x1p52;

  static NATIVEOPS_INLINE double exp_tail(double r) {
    return polynomial(r, 0x1p-1, 0x1.5555555555559p-3, 0x1.555555555555ap-5, 0x1.111111110f692p-7,
                      0x1.6c16c16c14422p-10, 0x1.a01a01aff3e47p-13, 0x1.a01a01b0c8535p-16,
                      0x1.71ddf8275fab0p-19, 0x1.27e4c576f2e3ep-22, 0x1.af5f173edb28ep-26,
                      0x1.1f95aa3353195p-29);
  }
  static NATIVEOPS_INLINE double log_tail(double z) {
    return polynomial(z, 0x1.5555555555555p-1, 0x1.9999999999e0ep-2, 0x1.249249242a0b1p-2,
                      0x1.c71c725a6c121p-3, 0x1.745cddc2a2a9ap-3, 0x1.3b20bf47fee9fp-3,
                      0x1.0f5b0a7f3ebddp-3, 0x1.0f72ff3b96b03p-3);
  }
  static NATIVEOPS_INLINE double erf_tail(double z) {
    return polynomial(z, 0x1.06eba8214db69p-3, -0x1.812746b037a25p-2, 0x1.ce2f21a0458d5p-4,
                      -0x1.b82ce3135542ap-6, 0x1.565bcd2d265adp-8, -0x1.c02db982a8bd2p-11,
                      0x1.f9a3c7b468f46p-14, -0x1.f4de6633bec0ep-17, 0x1.ba801fb2c50aep-20,
                      -0x1.6474ac4311de5p-23, 0x1.1882bfb330882p-26, -0x1.e92f1078fdc3cp-30,
                      0x1.70a5ec00a5131p-33);
  }
  static NATIVEOPS_INLINE double log_erfc(double x) {
    return polynomial(x, -0x1.a775a76a25ea3p-26, -0x1.20dd714894609p+0, -0x1.45f323180196dp-1,
                      -0x1.a4f3536bd6e83p-4, 0x1.3966e65d2456ep-6, 0x1.a721a84045461p-13,
                      -0x1.b6fc96268b56p-10, 0x1.218f3f6066ee1p-11, 0x1.6e9dbfa726ef8p-16,
                      -0x1.cfbb9befecfap-14, 0x1.0eea7374cc535p-14, -0x1.95d41d3d70d33p-16,
                      0x1.c4d73e1fcb4edp-18, -0x1.879291f5df2aep-20, 0x1.07bae7979de2dp-22,
                      -0x1.10d5f56e5c35ap-25, 0x1.a3cd6303c8569p-29, -0x1.c4eb92bb4f475p-33,
                      0x1.31d34f4dcfc8p-37, -0x1.84f74d288c344p-43);
  }
};

// 2^n for an integer -bias <= n <= bias: n + bias is moved from the last bits of a float that holds
// it as an integer to where the exponent stands. -bias gives 0.
template <class T>
NATIVEOPS_INLINE T power_of_two(T n) {
  using Bits = typename Format<T>::Bits;
  const Bits bits = bit_cast<Bits>(n + (Format<T>::round + Format<T>::bias));
  return bit_cast<T>(bits << Format<T>::mantissa);
}

// x = n ln(2) + r with |r| <= ln(2) / 2, and e^r - 1 = r + tail
template <class T>
struct Reduced {
  T n, r, tail;
};
template <class T>
NATIVEOPS_INLINE Reduced<T> reduce(T x) {
  using F = Format<T>;
  const T n = (x * T(0x1.71547652b82fep+0) + F::round) - F::round;
  const T r = (x - n * F::ln2_hi) - n * F::ln2_lo;
  return {n, r, r * r * F::exp_tail(r)};
}

// A sum and what its rounding took; |a| >= |b| or a = 0.
template <class T>
struct Exact {
  T high, low;
};
template <class T>
NATIVEOPS_INLINE Exact<T> exact_sum(T a, T b) {
  const T sum = a + b;
  return {sum, b - (sum - a)};
}

// e^x = 2^n e^r; 2^n in two factors, since it may be infinite or denormal where e^x is not.
template <class T>
NATIVEOPS_INLINE T exp(T x) {
  using F = Format<T>;
  x = x > F::exp_max ? F::exp_max : x;
  x = x < F::exp_min ? F::exp_min : x;
  const Reduced<T> y = reduce(x);
  const T half = (y.n * T(0.5) + F::round) - F::round;
  return (1 + (y.r + y.tail)) * power_of_two(half) * power_of_two(y.n - half);
}

// log(2^n (1 + f)) = n ln(2) + f - f^2/2 + s (f^2/2 + s^2 tail(s^2)) with s = f / (2 + f) and
// 1 + f in [sqrt(1/2), sqrt(2)]; `correction` is added where the small parts are.
template <class T>
NATIVEOPS_INLINE T log(T x, T correction = 0) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  const bool denormal = x < std::numeric_limits<T>::min();
  const T scaled = denormal ? x * F::denormal_scale : x;
  const Bits one = bit_cast<Bits>(T(1)), root = bit_cast<Bits>(T(0x1.6a09e667f3bcdp-1));
  const Bits moved = bit_cast<Bits>(scaled) + (one - root);
  const Bits integer = bit_cast<Bits>(F::round) + (moved >> F::mantissa);  // as in power_of_two
  const T exponent = bit_cast<T>(integer) - (F::round + F::bias);
  const T n = exponent - (denormal ? T(F::mantissa) : T(0));
  const T f = bit_cast<T>((moved & ((Bits(1) << F::mantissa) - 1)) + root) - 1;
  const T s = f / (2 + f), z = s * s, half_square = T(0.5) * f * f;
  const T tail = s * (half_square + z * F::log_tail(z)) + (n * F::ln2_lo + correction);
  const T result = n * F::ln2_hi - ((half_square - tail) - f);
  const T infinity = std::numeric_limits<T>::infinity();
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const T positive = x < infinity ? result : x;  // infinity and NaN stay themselves
  return x > 0 ? positive : x == 0 ? -infinity : x < 0 ? nan : x;
}

// log(1 + x) = log(u) + (what rounding took from 1 + x) / u with u = 1 + x, rounded
template <class T>
NATIVEOPS_INLINE T log1p(T x) {
  const T u = 1 + x;
  const T lost = u - x > 1 ? 1 - (u - x) : x - (u - 1);
  const T result = log(u, lost / u);  // which ignores the correction where u is 0 or infinite
  return x == 0 ? x : result;
}

// tanh|x| = m / (m + 2) with m = e^2|x| - 1 = 2^n (e^r - 1) + (2^n - 1). What is lost in rounding
// numerator and denominator is kept and added in the end, times 1 / (m + 2) = (1 - tanh|x|) / 2.
template <class T>
NATIVEOPS_INLINE T tanh(T x) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  const Bits sign = bit_cast<Bits>(x) & bit_cast<Bits>(T(-0.0));
  const T size = bit_cast<T>(bit_cast<Bits>(x) ^ sign);
  const Reduced<T> y = reduce(2 * (size > F::tanh_one ? F::tanh_one : size));
  const T scale = power_of_two(y.n);
  const Exact<T> power = exact_sum(y.r, y.tail);
  const Exact<T> m = exact_sum(scale - 1, scale * power.high);
  const T m_low = m.low + scale * power.low;
  const Exact<T> d = exact_sum(max2(m.high, T(2)), min2(m.high, T(2)));
  const T quotient = m.high / d.high;
  const T rest = (m_low - quotient * (d.low + m_low)) * (T(0.5) * (1 - quotient));
  return bit_cast<T>(bit_cast<Bits>(quotient + rest) | sign);
}

// 1 / (1 + e) for x >= 0 and e / (1 + e) for x < 0 with e = e^-|x|, corrected as in tanh;
// 1 / (1 + e) is the quotient or 1 - the quotient.
template <class T>
NATIVEOPS_INLINE T sigmoid(T x) {
  using F = Format<T>;
  const T negative = x < 0 ? x : -x;
  const Reduced<T> y = reduce(negative < F::exp_min ? F::exp_min : negative);
  const T half = (y.n * T(0.5) + F::round) - F::round;
  const T scale = power_of_two(half), scale_rest = power_of_two(y.n - half);
  const Exact<T> power = exact_sum(T(1), y.r + y.tail);
  const T e = power.high * scale * scale_rest, e_low = power.low * scale * scale_rest;
  const Exact<T> d = exact_sum(T(1), e);
  const T quotient = (x < 0 ? e : T(1)) / d.high;
  const T rest = (x < 0 ? e_low : T(0)) - quotient * (d.low + e_low);
  return quotient + rest * (x < 0 ? 1 - quotient : quotient);
}

// erf|x| = |x| + |x| tail(x^2) below 1; 1 - e^log_erfc(|x|) from there on, where 2^n is no
// denormal.
template <class T>
NATIVEOPS_INLINE T erf(T x) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  const Bits sign = bit_cast<Bits>(x) & bit_cast<Bits>(T(-0.0));
  const T size = bit_cast<T>(bit_cast<Bits>(x) ^ sign);
  const Reduced<T> y = reduce(F::log_erfc(size > F::erf_one ? F::erf_one : size));
  const T large = 1 - (1 + (y.r + y.tail)) * power_of_two(y.n);
  const T small = size + size * F::erf_tail(size * size);
  return bit_cast<T>(bit_cast<Bits>(size < 1 ? small : large) | sign);
}

}  // namespace elementary
}  // namespace nativeops
