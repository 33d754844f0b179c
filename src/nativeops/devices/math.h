// SPDX-License-Identifier: Apache-2.0
// Elementary functions, the same on every device. On the CPU they have no branches, so that a plain
// loop over them vectorises without -ffast-math; on CUDA they are the device's own functions.
//
// Greatest error in ulp, tested against long double in tests/toolkit; special values as in C:
//   exp, log, log1p   1      tanh, sigmoid, erf   1.6      on the CPU, float and double
//   CUDA: as its programming guide states (2 for float), sigmoid 3
// logaddexp: 2 ulp of the larger of |a|, |b| and 1, since its two terms may cancel.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "nativeops/devices/elementary.h"
#include "nativeops/devices/half.h"

namespace nativeops {

NATIVEOPS_INLINE float abs(float v) { return fabsf(v); }
NATIVEOPS_INLINE double abs(double v) { return fabs(v); }
NATIVEOPS_INLINE int32_t abs(int32_t v) { return v < 0 ? -v : v; }
NATIVEOPS_INLINE int64_t abs(int64_t v) { return v < 0 ? -v : v; }

// Rounded correctly on every device.
NATIVEOPS_INLINE float sqrt(float v) { return sqrtf(v); }
NATIVEOPS_INLINE double sqrt(double v) { return ::sqrt(v); }

// -1, 0 or 1; NaN stays NaN.
template <class T>
NATIVEOPS_INLINE T sign(T v) {
#if defined(__CUDA_ARCH__)
  return v > T(0) ? T(1) : v < T(0) ? T(-1) : v;
#else
  const T s = static_cast<T>((v > T(0) ? T(1) : T(0)) - (v < T(0) ? T(1) : T(0)));
  return v == v ? s : v;
#endif
}

// min2 and max2, but NaN if one of the two is NaN.
template <class T>
NATIVEOPS_INLINE T min_or_nan(T a, T b) {
  const T least = a < b ? a : b;
  return a == a ? least : a;
}
template <class T>
NATIVEOPS_INLINE T max_or_nan(T a, T b) {
  const T largest = a > b ? a : b;
  return a == a ? largest : a;
}

// The quotient of two numbers that are not negative, and what is left. A GPU divides numbers of 64
// bits by some hundred instructions, so it does that only where it must.
struct Divided {
  int64_t whole, rest;
};
NATIVEOPS_INLINE Divided divide(int64_t number, int64_t by) {
#if defined(__CUDA_ARCH__)
  if (((number | by) >> 32) == 0) {
    const uint32_t all = static_cast<uint32_t>(number), part = static_cast<uint32_t>(by);
    const uint32_t whole = all / part;
    return {whole, all - whole * part};
  }
#endif
  return {number / by, number % by};
}

// Members, since CUDA's device code may read a constant of the host but not call its functions.
template <class T>
struct Extreme {
  using Limits = std::numeric_limits<T>;
  static constexpr T most = Limits::max();
  static constexpr T highest = Limits::has_infinity ? Limits::infinity() : most;
  static constexpr T lowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  static constexpr T nan = Limits::quiet_NaN();
};

// What any number beats in max2 and min2: the infinities, or the extreme integers.
template <class T>
NATIVEOPS_INLINE T lowest() {
  return Extreme<T>::lowest;
}
template <class T>
NATIVEOPS_INLINE T highest() {
  return Extreme<T>::highest;
}
template <class T>
NATIVEOPS_INLINE T not_a_number() {
  return Extreme<T>::nan;
}
template <class T>
NATIVEOPS_INLINE bool is_finite(T v) {
  return v >= -Extreme<T>::most && v <= Extreme<T>::most;
}

// The two passes of nvcc need one signature each, so what differs stands inside.
#if defined(__CUDA_ARCH__)
#define NATIVEOPS_PICK(device, host) device
#else
#define NATIVEOPS_PICK(device, host) host
#endif

NATIVEOPS_INLINE float exp(float x) { return NATIVEOPS_PICK(expf(x), elementary::exp(x)); }
NATIVEOPS_INLINE double exp(double x) { return NATIVEOPS_PICK(::exp(x), elementary::exp(x)); }
NATIVEOPS_INLINE float log(float x) { return NATIVEOPS_PICK(logf(x), elementary::log(x)); }
NATIVEOPS_INLINE double log(double x) { return NATIVEOPS_PICK(::log(x), elementary::log(x)); }
NATIVEOPS_INLINE float log1p(float x) { return NATIVEOPS_PICK(log1pf(x), elementary::log1p(x)); }
NATIVEOPS_INLINE double log1p(double x) { return NATIVEOPS_PICK(::log1p(x), elementary::log1p(x)); }
NATIVEOPS_INLINE float tanh(float x) { return NATIVEOPS_PICK(tanhf(x), elementary::tanh(x)); }
NATIVEOPS_INLINE double tanh(double x) { return NATIVEOPS_PICK(::tanh(x), elementary::tanh(x)); }
NATIVEOPS_INLINE float erf(float x) { return NATIVEOPS_PICK(erff(x), elementary::erf(x)); }
NATIVEOPS_INLINE double erf(double x) { return NATIVEOPS_PICK(::erf(x), elementary::erf(x)); }

#undef NATIVEOPS_PICK

// 1 / (1 + e^-x)
template <class T>
NATIVEOPS_INLINE Accum<T> sigmoid(T value) {
  const Accum<T> x = value;
#if defined(__CUDA_ARCH__)
  const Accum<T> e = exp(-abs(x));
  return (x < 0 ? e : 1) / (1 + e);
#else
  return elementary::sigmoid(x);
#endif
}

// log(e^a + e^b). Two infinities of one sign give that infinity.
template <class T>
NATIVEOPS_INLINE Accum<T> logaddexp(T first, T second) {
  const Accum<T> a = first, b = second;
  const Accum<T> difference = a == b ? Accum<T>(0) : -abs(a - b);
  return max2(a, b) + log1p(exp(difference));
}

}  // namespace nativeops
