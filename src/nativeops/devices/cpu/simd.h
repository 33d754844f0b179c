// SPDX-License-Identifier: Apache-2.0
// Vectors of float and double, as wide as the instruction set that a file is compiled for, so that
// a tuned kernel reads as its formula. The only place that names an instruction.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "nativeops/devices/cpu/unroll.h"
#include "nativeops/devices/half.h"

#if !defined(NATIVEOPS_LEVEL) || NATIVEOPS_LEVEL < 1
#error "simd.h needs AVX2 or more: include it where NATIVEOPS_LEVEL >= 1"
#endif

namespace nativeops::simd {

constexpr int kVectorBytes = NATIVEOPS_LEVEL >= 2 ? 64 : 32;

template <class T>
struct Vec {
  using Number = T;
  using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  typedef T Raw __attribute__((vector_size(kVectorBytes)));
  typedef Int Bits __attribute__((vector_size(kVectorBytes)));

  Raw raw;

  friend Vec operator+(Vec a, Vec b) { return {a.raw + b.raw}; }
  friend Vec operator-(Vec a, Vec b) { return {a.raw - b.raw}; }
  friend Vec operator*(Vec a, Vec b) { return {a.raw * b.raw}; }
};

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
typename Vec<T>::Bits bits(Vec<T> a) {
  return reinterpret_cast<typename Vec<T>::Bits>(a.raw);
}
template <class T>
Vec<T> from_bits(typename Vec<T>::Bits a) {
  return {reinterpret_cast<typename Vec<T>::Raw>(a)};
}

template <class T>
Vec<T> zero() {
  return {typename Vec<T>::Raw{}};
}
template <class T>
Vec<T> broadcast(T value) {
  return {value - typename Vec<T>::Raw{}};  // value - 0 is value, -0 too
}

// The number at `from` in every lane, spread as it is loaded.
inline Vec<float> broadcast_from(const float* from) {
#if NATIVEOPS_LEVEL >= 2
  return {_mm512_set1_ps(*from)};
#else
  return {_mm256_broadcast_ss(from)};
#endif
}
inline Vec<double> broadcast_from(const double* from) {
#if NATIVEOPS_LEVEL >= 2
  return {_mm512_set1_pd(*from)};
#else
  return {_mm256_broadcast_sd(from)};
#endif
}

// The compiler must have this value here, and knows nothing about it from here on.
template <class T>
void keep(Vec<T>& a) {
#if NATIVEOPS_LEVEL >= 2
  __asm__ volatile("" : "+v"(a.raw));
#else
  __asm__ volatile("" : "+x"(a.raw));
#endif
}

template <class T>
Vec<T> abs(Vec<T> a) {
  return from_bits<T>(bits(a) & std::numeric_limits<typename Vec<T>::Int>::max());
}

// The larger of two numbers >= 0, NaN if one is: without a sign their bits are ordered as integers.
template <class T>
Vec<T> max_unsigned(Vec<T> a, Vec<T> b) {
  return from_bits<T>(bits(a) > bits(b) ? bits(a) : bits(b));
}

#if NATIVEOPS_LEVEL >= 2

// a·b + c, and c - a·b
template <class T>
Vec<T> fma(Vec<T> a, Vec<T> b, Vec<T> c) {
  if constexpr (sizeof(T) == 4)
    return {_mm512_fmadd_ps(a.raw, b.raw, c.raw)};
  else
    return {_mm512_fmadd_pd(a.raw, b.raw, c.raw)};
}
template <class T>
Vec<T> fnma(Vec<T> a, Vec<T> b, Vec<T> c) {
  if constexpr (sizeof(T) == 4)
    return {_mm512_fnmadd_ps(a.raw, b.raw, c.raw)};
  else
    return {_mm512_fnmadd_pd(a.raw, b.raw, c.raw)};
}
inline Vec<float> sqrt(Vec<float> a) { return {_mm512_maskz_sqrt_ps(0xffff, a.raw)}; }
inline Vec<double> sqrt(Vec<double> a) { return {_mm512_maskz_sqrt_pd(0xff, a.raw)}; }

// -1, 0 or 1; NaN of NaN. Four bits say what becomes of each class of numbers, from the lowest:
// two of NaN (2: stays NaN), zero (8: 0), one (a: 1), -infinity (9: -1), infinity, below 0, above
// 0.
constexpr int64_t kSignOfClass = 0xa9a9a822;
inline Vec<float> sign(Vec<float> a) {
  const __m512i table = _mm512_set1_epi32(static_cast<int32_t>(kSignOfClass));
  return {_mm512_fixupimm_ps(a.raw, a.raw, table, 0)};
}
inline Vec<double> sign(Vec<double> a) {
  return {_mm512_fixupimm_pd(a.raw, a.raw, _mm512_set1_epi64(kSignOfClass), 0)};
}

// The same with one number for every lane: a - *b, min(a, *b), a·*b, a·*b + c, c - a·*b. An
// instruction that spreads a number as it loads it is free, but left alone the compiler loads the
// number into a register once, and on Zen4 that takes a vector unit (1.3 times the time of a loop,
// 2026-11). The smaller of a number and NaN is any of the two.
template <class T>
Vec<T> sub(Vec<T> a, const T* b) {
  if constexpr (sizeof(T) == 4) {
    __asm__("vsubps %2%{1to16%}, %1, %0" : "=v"(a.raw) : "v"(a.raw), "m"(*b));
  } else {
    __asm__("vsubpd %2%{1to8%}, %1, %0" : "=v"(a.raw) : "v"(a.raw), "m"(*b));
  }
  return a;
}
template <class T>
Vec<T> smaller(Vec<T> a, const T* b) {
  if constexpr (sizeof(T) == 4) {
    __asm__("vminps %2%{1to16%}, %1, %0" : "=v"(a.raw) : "v"(a.raw), "m"(*b));
  } else {
    __asm__("vminpd %2%{1to8%}, %1, %0" : "=v"(a.raw) : "v"(a.raw), "m"(*b));
  }
  return a;
}
template <class T>
Vec<T> mul(Vec<T> a, const T* b) {
  if constexpr (sizeof(T) == 4) {
    __asm__("vmulps %2%{1to16%}, %1, %0" : "=v"(a.raw) : "v"(a.raw), "m"(*b));
  } else {
    __asm__("vmulpd %2%{1to8%}, %1, %0" : "=v"(a.raw) : "v"(a.raw), "m"(*b));
  }
  return a;
}
template <class T>
Vec<T> fma(Vec<T> a, const T* b, Vec<T> c) {
  if constexpr (sizeof(T) == 4) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c.raw) : "v"(a.raw), "m"(*b));
  } else {
    __asm__("vfmadd231pd %2%{1to8%}, %1, %0" : "+v"(c.raw) : "v"(a.raw), "m"(*b));
  }
  return c;
}
template <class T>
Vec<T> fnma(Vec<T> a, const T* b, Vec<T> c) {
  if constexpr (sizeof(T) == 4) {
    __asm__("vfnmadd231ps %2%{1to16%}, %1, %0" : "+v"(c.raw) : "v"(a.raw), "m"(*b));
  } else {
    __asm__("vfnmadd231pd %2%{1to8%}, %1, %0" : "+v"(c.raw) : "v"(a.raw), "m"(*b));
  }
  return c;
}

// c + a0·b0 + a1·b1 for lanes that hold two bf16 each; denormals count as 0. Written as text, since
// only some CPUs of this level have it: ask has_pairs() first.
inline Vec<float> fma_pairs(Vec<float> a, Vec<float> b, Vec<float> c) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(c.raw) : "v"(a.raw), "v"(b.raw));
  return c;
}
inline bool has_pairs() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16");
}

inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1 << count) - 1);
}

// The first `count` < kLanes lanes: no other memory is touched, and what is not loaded is 0.
inline Vec<float> load_first(const float* from, int64_t count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), from)};
}
inline Vec<double> load_first(const double* from, int64_t count) {
  return {_mm512_maskz_loadu_pd(static_cast<__mmask8>(first_lanes(count)), from)};
}
inline Vec<float> load_first(const bf16* from, int64_t count) {
  const __mmask16 lanes = first_lanes(count);
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(lanes, _mm256_maskz_loadu_epi16(lanes, from));
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(lanes, wide, 16))};
}
inline Vec<float> load_first(const f16* from, int64_t count) {
  const __mmask16 lanes = first_lanes(count);
  return {_mm512_maskz_cvtph_ps(lanes, _mm256_maskz_loadu_epi16(lanes, from))};
}
inline void store_first(float* to, Vec<float> a, int64_t count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), a.raw);
}
inline void store_first(double* to, Vec<double> a, int64_t count) {
  _mm512_mask_storeu_pd(to, static_cast<__mmask8>(first_lanes(count)), a.raw);
}

using Truth = __m512i;  // of a comparison: all bits of a lane, or none
inline bool all_true(Truth truth) { return _mm512_movepi8_mask(truth) == ~__mmask64{0}; }
// A bit for each lane.
template <class T>
uint32_t lanes_of(Truth truth) {
  return sizeof(T) == 4 ? _mm512_movepi32_mask(truth) : _mm512_movepi64_mask(truth);
}

#else

template <class T>
Vec<T> fma(Vec<T> a, Vec<T> b, Vec<T> c) {
  if constexpr (sizeof(T) == 4)
    return {_mm256_fmadd_ps(a.raw, b.raw, c.raw)};
  else
    return {_mm256_fmadd_pd(a.raw, b.raw, c.raw)};
}
template <class T>
Vec<T> fnma(Vec<T> a, Vec<T> b, Vec<T> c) {
  if constexpr (sizeof(T) == 4)
    return {_mm256_fnmadd_ps(a.raw, b.raw, c.raw)};
  else
    return {_mm256_fnmadd_pd(a.raw, b.raw, c.raw)};
}
inline Vec<float> sqrt(Vec<float> a) { return {_mm256_sqrt_ps(a.raw)}; }
inline Vec<double> sqrt(Vec<double> a) { return {_mm256_sqrt_pd(a.raw)}; }

// The same with one number for every lane: a - *b, min(a, *b), a·*b, a·*b + c, c - a·*b
template <class T>
Vec<T> sub(Vec<T> a, const T* b) {
  return a - broadcast(*b);
}
template <class T>
Vec<T> smaller(Vec<T> a, const T* b) {
  const Vec<T> all = broadcast(*b);
  return {a.raw < all.raw ? a.raw : all.raw};
}
template <class T>
Vec<T> mul(Vec<T> a, const T* b) {
  return a * broadcast(*b);
}
template <class T>
Vec<T> fma(Vec<T> a, const T* b, Vec<T> c) {
  return fma(a, broadcast(*b), c);
}
template <class T>
Vec<T> fnma(Vec<T> a, const T* b, Vec<T> c) {
  return fnma(a, broadcast(*b), c);
}

// -1, 0 or 1; NaN of NaN: one with the sign of a, cleared where a = 0, all bits set where NaN.
template <class T>
Vec<T> sign(Vec<T> a) {
  using Bits = typename Vec<T>::Bits;
  const Bits sign_bit = bits(a) & std::numeric_limits<typename Vec<T>::Int>::min();
  const Bits one = sign_bit | bits(broadcast(T(1)));
  return from_bits<T>((one & (a.raw != T(0))) | (a.raw != a.raw));
}

template <class T>
__m256i first_lanes(int64_t count) {
  using Int = typename Vec<T>::Int;
  typename Vec<T>::Bits lane;
  for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
  return reinterpret_cast<__m256i>(lane < static_cast<Int>(count));
}

// The first `count` < kLanes lanes: no other memory is touched, and what is not loaded is 0.
inline Vec<float> load_first(const float* from, int64_t count) {
  return {_mm256_maskload_ps(from, first_lanes<float>(count))};
}
inline Vec<double> load_first(const double* from, int64_t count) {
  return {_mm256_maskload_pd(from, first_lanes<double>(count))};
}
template <class Half>
__m128i load_halves(const Half* from, int64_t count) {
  if (count >= 8) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  alignas(16) Half part[8] = {};
  memcpy(part, from, static_cast<size_t>(count) * sizeof(Half));
  return _mm_load_si128(reinterpret_cast<const __m128i*>(part));
}
inline Vec<float> load_first(const bf16* from, int64_t count) {
  const __m256i wide = _mm256_cvtepu16_epi32(load_halves(from, count));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline Vec<float> load_first(const f16* from, int64_t count) {
  return {_mm256_cvtph_ps(load_halves(from, count))};
}
inline void store_first(float* to, Vec<float> a, int64_t count) {
  _mm256_maskstore_ps(to, first_lanes<float>(count), a.raw);
}
inline void store_first(double* to, Vec<double> a, int64_t count) {
  _mm256_maskstore_pd(to, first_lanes<double>(count), a.raw);
}

using Truth = __m256i;  // of a comparison: all bits of a lane, or none
inline bool all_true(Truth truth) { return _mm256_movemask_epi8(truth) == -1; }
// A bit for each lane.
template <class T>
uint32_t lanes_of(Truth truth) {
  const int lanes = sizeof(T) == 4 ? _mm256_movemask_ps(_mm256_castsi256_ps(truth))
                                   : _mm256_movemask_pd(_mm256_castsi256_pd(truth));
  return static_cast<uint32_t>(lanes);
}

#endif

template <class T>
Vec<T> load(const T* from) {
  Vec<T> a;
  memcpy(&a.raw, from, sizeof a.raw);
  return a;
}
template <class T>
void store(T* to, Vec<T> a) {
  memcpy(to, &a.raw, sizeof a.raw);
}

// Writes past the caches, to an address that is a multiple of a vector's bytes. Other threads see
// it after settle().
template <class T>
void stream(T* to, Vec<T> a) {
#if NATIVEOPS_LEVEL >= 2
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(a.raw));
#else
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(a.raw));
#endif
}
inline void settle() { _mm_sfence(); }

// As many lanes as there are numbers: all of them, or the first `count`.
template <class T>
Vec<Accum<T>> load(const T* from, int64_t count) {
  if constexpr (sizeof(T) >= 4) {
    if (count >= kLanes<T>) return load(from);
  }
  return load_first(from, count);
}
template <class T>
void store(T* to, Vec<T> a, int64_t count) {
  count >= kLanes<T> ? store(to, a) : store_first(to, a, count);
}

// Whether this CPU, as AMD's do, adds in other units than it multiplies in.
inline bool adds_apart() {
  __builtin_cpu_init();
  return __builtin_cpu_is("amd");
}

// A bit for each lane: is a >= b? Of NaN it is not.
template <class T>
uint32_t at_least(Vec<T> a, Vec<T> b) {
  return lanes_of<T>(reinterpret_cast<Truth>(a.raw >= b.raw));
}

// Is low <= a <= high in every lane? NaN is not.
template <class T>
bool all_within(Vec<T> a, T low, T high) {
  return all_true(reinterpret_cast<Truth>((a.raw >= low) & (a.raw <= high)));
}

}  // namespace nativeops::simd
