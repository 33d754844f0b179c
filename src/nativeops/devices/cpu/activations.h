// SPDX-License-Identifier: Apache-2.0
// The gates of recurrent cells, a vector at a time. Greatest errors in float: 1.3e-7 of sigmoid and
// tanh, relative 3e-7 of tanh, tested in tests/toolkit; in double both are elementary.h's. Two to
// four times as fast as those, which correct their rounding. NaN stays NaN, and numbers of any size
// are right, but that no sigmoid in float is below 1.6e-38.
#pragma once
#include "nativeops/devices/cpu/simd.h"
#include "nativeops/devices/elementary.h"

namespace nativeops::simd {

// e^x for |x| <= 87
NATIVEOPS_INLINE float exp_within(float x) {
  const elementary::Reduced<float> y = elementary::reduce(x);
  return (1 + (y.r + y.tail)) * elementary::power_of_two(y.n);
}

// 1 / (1 + e^-x)
NATIVEOPS_INLINE float sigmoid(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  return 1 / (1 + exp_within(-x));
}
NATIVEOPS_INLINE double sigmoid(double x) { return elementary::sigmoid(x); }

// 1 - 2 / (1 + e^2|x|) with the sign of x. Near 0, where that cancels, x + x^3 q(x^2): q is the
// minimax fit (2026-11) of (tanh(x) / x - 1) / x^2 for x^2 <= 0.36.
NATIVEOPS_INLINE float tanh(float x) {
  const uint32_t sign = bit_cast<uint32_t>(x) & 0x80000000u;
  const float size = bit_cast<float>(bit_cast<uint32_t>(x) ^ sign);
  const float bounded = size > 9.5f ? 9.5f : size;
  const float large = 1 - 2 / (1 + exp_within(2 * bounded));
  const float square = bounded * bounded;
  const float small =
      bounded + bounded * square *
                    elementary::polynomial(square, -0x1.555554p-2f, 0x1.110eep-3f, -0x1.b955dcp-5f,
                                           0x1.59e1c8p-6f, -0x1.9ada6p-8f);
  return bit_cast<float>(bit_cast<uint32_t>(square < 0.36f ? small : large) | sign);
}
NATIVEOPS_INLINE double tanh(double x) { return elementary::tanh(x); }

// f of every lane; f must be of the kind that vectorises.
template <class T, class F>
NATIVEOPS_INLINE Vec<T> map(Vec<T> a, F f) {
  alignas(kVectorBytes) T lane[kLanes<T>];
  store(lane, a);
  for (int i = 0; i < kLanes<T>; ++i) lane[i] = f(lane[i]);
  return load(lane);
}
#if NATIVEOPS_LEVEL >= 2
// Two thirds of the operations of the ones above: x is split in units of ln(2), 2^n r is one
// operation, and a quotient of two sums needs no case near 0. Minimax fits (2026-11) on |r| <= 1/2.
// With all lanes by a mask: what g++ 12 makes of the plain intrinsics reads a number that is not
// set.
struct PowerOfTwo {
  __m512 n, r;

  explicit PowerOfTwo(__m512 t) : n(_mm512_maskz_roundscale_ps(0xffff, t, 8)), r(t - n) {}
  template <class... More>
  __m512 polynomial(float last, More... others) const {
    __m512 sum = _mm512_set1_ps(last);
    ((sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(others))), ...);
    return sum;
  }
  __m512 times(__m512 a) const { return _mm512_maskz_scalef_ps(0xffff, a, n); }
};

// 1 / (1 + 2^(n + r)); the smaller of two is the second where one is NaN
NATIVEOPS_INLINE Vec<float> sigmoid(Vec<float> a) {
  const __m512 one = _mm512_set1_ps(1), most = _mm512_set1_ps(125.5f);
  const PowerOfTwo power(
      _mm512_maskz_min_ps(0xffff, most, a.raw * _mm512_set1_ps(-0x1.715476p+0f)));
  return {one / (one + power.times(power.polynomial(0x1.5bda3cp-10f, 0x1.3ce8acp-7f, 0x1.c6b6d8p-5f,
                                                    0x1.ebf9c2p-3f, 0x1.62e42ap-1f, 0x1p+0f)))};
}
// q / (q + 2), q = 2^(n + r) - 1, with the sign of a
NATIVEOPS_INLINE Vec<float> tanh(Vec<float> a) {
  const __m512 one = _mm512_set1_ps(1), most = _mm512_set1_ps(27.5f);
  const __m512 sign = _mm512_set1_ps(-0.0f), size = _mm512_andnot_ps(sign, a.raw);
  const PowerOfTwo power(_mm512_maskz_min_ps(0xffff, most, size * _mm512_set1_ps(0x1.715476p+1f)));
  const __m512 rest = power.r * power.polynomial(0x1.4296bcp-13f, 0x1.5ef12ap-10f, 0x1.3b2c3ep-7f,
                                                 0x1.c6afa4p-5f, 0x1.ebfbdep-3f, 0x1.62e43p-1f);
  const __m512 scale = power.times(one), q = _mm512_fmadd_ps(rest, scale, scale - one);
  return {_mm512_or_ps(q / (q + _mm512_set1_ps(2)), _mm512_and_ps(sign, a.raw))};
}
#endif
template <class T>
NATIVEOPS_INLINE Vec<T> sigmoid(Vec<T> a) {
  return map(a, [](T x) __attribute__((always_inline)) { return sigmoid(x); });
}
template <class T>
NATIVEOPS_INLINE Vec<T> tanh(Vec<T> a) {
  return map(a, [](T x) __attribute__((always_inline)) { return tanh(x); });
}

template <class T>
Vec<T> relu(Vec<T> a) {
  return {a.raw < T(0) ? typename Vec<T>::Raw{} : a.raw};
}

// Derivatives, from the values.
template <class T>
Vec<T> sigmoid_slope(Vec<T> a) {
  return fnma(a, a, a);
}
template <class T>
Vec<T> tanh_slope(Vec<T> a) {
  return fnma(a, a, broadcast(T(1)));
}
template <class T>
Vec<T> relu_slope(Vec<T> a) {
  return {a.raw > T(0) ? broadcast(T(1)).raw : typename Vec<T>::Raw{}};
}

}  // namespace nativeops::simd
