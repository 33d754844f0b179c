// SPDX-License-Identifier: Apache-2.0
// exp, log, log1p, tanh, sigmoid and erf for float and double without branches, tables or calls.
// Denormals, infinities, NaN and -0 are right. The polynomials are minimax fits (Remez, 2026-11);
// their errors are below 2^-31 in float and 2^-61 in double, relative to the term that they
// complete; those of erf below 2^-27 and 2^-54, relative to erf.
#pragma once
#include <cstdint>
#include <limits>

#include "nativeops/devices/half.h"

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
  // erf(x) / x - 1 for z = x^2 <= 1.5^2
  static NATIVEOPS_INLINE float erf_tail(float z) {
    return polynomial(z - 1.125f, -0x1.771e98p-3f, -0x1.9a0f4ap-3f, 0x1.aa9b64p-5f, -0x1.76d814p-7f,
                      0x1.15011ep-9f, -0x1.5dd62ap-12f, 0x1.800d8ep-15f, -0x1.82cb7p-18f,
                      0x1.5d9822p-21f);
  }
  // (1 - erf(x))^(1/8) for 1.375 <= x <= erf_one
  static NATIVEOPS_INLINE float erfc_root(float x) {
    return polynomial(x, 0x1.007754p+0f, -0x1.301084p-3f, -0x1.cf8674p-5f, -0x1.eb41bap-7f,
                      0x1.d89c48p-7f, -0x1.6e4d3ep-9f, 0x1.76d14p-13f);
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
    return polynomial(z - 1.125, -0x1.771e9878e8181p-3, -0x1.9a0f4ba28a7a9p-3, 0x1.aa9b76b75488ep-5,
                      -0x1.76d74fee2943bp-7, 0x1.14fddf5e94365p-9, -0x1.5e0ed92b8437cp-12,
                      0x1.80f0ef08262a5p-15, -0x1.75ed45994bf65p-18, 0x1.44f05add67e00p-21,
                      -0x1.fe8e3557b5b50p-25, 0x1.6dd5c5ff19876p-28, -0x1.e1ab9c28dd639p-32,
                      0x1.2563b4e075898p-35, -0x1.5302bec91da2ep-39, 0x1.62de11bd38bf8p-43);
  }
  static NATIVEOPS_INLINE double erfc_root(double x) {
    return polynomial(x, 0x1.ffffe9171904fp-1, -0x1.20da8a442fcf3p-3, -0x1.1d4aecc9ace22p-4,
                      -0x1.0b552c9befd49p-9, 0x1.aab0a4004fa54p-8, 0x1.20b48693733fep-12,
                      -0x1.3337e45038bc4p-11, 0x1.1508023daeb3bp-13, -0x1.72ecc40af54d3p-16,
                      0x1.0f931d16861bep-18, -0x1.00207609a181p-22, -0x1.433a2903dd898p-23,
                      0x1.a7dc121c00682p-25, -0x1.fda28a725e4f7p-28, 0x1.5f11acce6150cp-31,
                      -0x1.0ebb26bef502p-35, 0x1.6ff1580bd571ap-41);
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

// erf|x| = |x| + |x| tail(x^2) below 1.375; 1 - erfc_root(|x|)^8 from there on, where it is so near
// to 1 that the errors of the power do not count.
template <class T>
NATIVEOPS_INLINE T erf(T x) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  const Bits sign = bit_cast<Bits>(x) & bit_cast<Bits>(T(-0.0));
  const T size = bit_cast<T>(bit_cast<Bits>(x) ^ sign);
  const T small = size + size * F::erf_tail(size * size);
  const T root = F::erfc_root(size > F::erf_one ? F::erf_one : size);
  const T square = root * root, fourth = square * square, large = 1 - fourth * fourth;
  return bit_cast<T>(bit_cast<Bits>(size < T(1.375) ? small : large) | sign);
}

}  // namespace elementary
}  // namespace nativeops
