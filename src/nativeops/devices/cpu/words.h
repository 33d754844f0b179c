// SPDX-License-Identifier: Apache-2.0
// Vectors of 64-bit words for bit-parallel kernels, as wide as the instruction set that a file is
// compiled for; the instructions that they need beside those of simd.h.
#pragma once
#include <cstring>

#include "nativeops/devices/cpu/simd.h"

namespace nativeops::simd {

typedef uint64_t Words __attribute__((vector_size(kVectorBytes)));
constexpr int kWords = kVectorBytes / 8;

inline Words words(uint64_t value) { return value - Words{}; }
inline Words load_words(const uint64_t* from) {
  Words a;
  memcpy(&a, from, sizeof a);
  return a;
}
inline void store_words(uint64_t* to, Words a) { memcpy(to, &a, sizeof a); }

// (a ^ b) | c, (a | b) & ~c and (a & ~b) | c: one instruction each where there is one of three
// operands.
inline uint64_t xor_or(uint64_t a, uint64_t b, uint64_t c) { return (a ^ b) | c; }
inline uint64_t or_and_not(uint64_t a, uint64_t b, uint64_t c) { return (a | b) & ~c; }
inline uint64_t and_not_or(uint64_t a, uint64_t b, uint64_t c) { return (a & ~b) | c; }

#if NATIVEOPS_LEVEL >= 2

inline __m512i raw(Words a) { return reinterpret_cast<__m512i>(a); }
inline Words from_raw(__m512i a) { return reinterpret_cast<Words>(a); }
inline Words xor_or(Words a, Words b, Words c) {
  return from_raw(_mm512_ternarylogic_epi64(raw(a), raw(b), raw(c), 0xbe));
}
inline Words or_and_not(Words a, Words b, Words c) {
  return from_raw(_mm512_ternarylogic_epi64(raw(a), raw(b), raw(c), 0x54));
}
inline Words and_not_or(Words a, Words b, Words c) {
  return from_raw(_mm512_ternarylogic_epi64(raw(a), raw(b), raw(c), 0xba));
}

// The byte of a table of 16 whose number stands in each byte.
inline Words look_up(const uint64_t (&table)[2], Words numbers) {
  // With a mask of all, since GCC 12 finds an undefined value in what has none.
  const __m512i bytes = _mm512_maskz_broadcast_i64x2(0xff, _mm_set_epi64x(table[1], table[0]));
  return from_raw(_mm512_shuffle_epi8(bytes, raw(numbers)));
}
inline Words sum_bytes(Words a) {
  return from_raw(_mm512_sad_epu8(raw(a), _mm512_setzero_si512()));
}
inline void store_narrow(int32_t* to, Words a) {
  const __m256i narrow = _mm512_maskz_cvtepi64_epi32(0xff, raw(a));
  memcpy(to, &narrow, sizeof narrow);
}

// Every word from its neighbour below; the lowest from the highest of `in`.
inline Words from_below(Words a, Words in) {
  return from_raw(_mm512_alignr_epi64(raw(a), raw(in), 7));
}

// The words of b in the lanes whose number has this bit (1, 2, 4), else those of a.
template <int kBit>
Words pick(Words a, Words b) {
  constexpr __mmask8 kLanes = kBit == 1 ? 0xaa : kBit == 2 ? 0xcc : 0xf0;
  return from_raw(_mm512_mask_mov_epi64(raw(a), kLanes, raw(b)));
}

// Bit i tells whether from[i] is the code, 0 ≤ i < 64.
inline uint64_t matches(const uint8_t* from, uint8_t code) {
  return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(from), _mm512_set1_epi8(char(code)));
}
inline uint64_t matches(const uint16_t* from, uint16_t code) {
  const __m512i all = _mm512_set1_epi16(static_cast<int16_t>(code));
  const uint64_t low = _mm512_cmpeq_epi16_mask(_mm512_loadu_si512(from), all);
  return low | uint64_t{_mm512_cmpeq_epi16_mask(_mm512_loadu_si512(from + 32), all)} << 32;
}
inline uint64_t matches(const uint32_t* from, uint32_t code) {
  const __m512i all = _mm512_set1_epi32(static_cast<int32_t>(code));
  uint64_t found = 0;
  unroll<4>([&](auto i) {
    const uint64_t part = _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(from + 16 * i), all);
    found |= part << (16 * i);
  });
  return found;
}

#else

inline __m256i raw(Words a) { return reinterpret_cast<__m256i>(a); }
inline Words from_raw(__m256i a) { return reinterpret_cast<Words>(a); }
inline Words xor_or(Words a, Words b, Words c) { return (a ^ b) | c; }
inline Words or_and_not(Words a, Words b, Words c) { return (a | b) & ~c; }
inline Words and_not_or(Words a, Words b, Words c) { return (a & ~b) | c; }
inline Words look_up(const uint64_t (&table)[2], Words numbers) {
  const __m256i bytes = _mm256_set_epi64x(table[1], table[0], table[1], table[0]);
  return from_raw(_mm256_shuffle_epi8(bytes, raw(numbers)));
}
inline Words sum_bytes(Words a) {
  return from_raw(_mm256_sad_epu8(raw(a), _mm256_setzero_si256()));
}
inline void store_narrow(int32_t* to, Words a) {
  for (int i = 0; i < kWords; ++i) to[i] = static_cast<int32_t>(a[i]);
}
inline Words from_below(Words a, Words in) {
  const __m256i turned = _mm256_permute4x64_epi64(raw(a), 0x93);
  return from_raw(_mm256_blend_epi32(turned, _mm256_permute4x64_epi64(raw(in), 0x93), 0x03));
}
template <int kBit>
Words pick(Words a, Words b) {
  return from_raw(_mm256_blend_epi32(raw(a), raw(b), kBit == 1 ? 0xcc : 0xf0));
}
inline __m256i load_codes(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline uint64_t matches(const uint8_t* from, uint8_t code) {
  const __m256i all = _mm256_set1_epi8(char(code));
  uint64_t found = 0;
  unroll<2>([&](auto i) {
    const __m256i equal = _mm256_cmpeq_epi8(load_codes(from + 32 * i), all);
    found |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(equal))} << (32 * i);
  });
  return found;
}
inline uint64_t matches(const uint16_t* from, uint16_t code) {
  const __m256i all = _mm256_set1_epi16(static_cast<int16_t>(code));
  uint64_t found = 0;
  unroll<2>([&](auto i) {
    const __m256i low = _mm256_cmpeq_epi16(load_codes(from + 32 * i), all);
    const __m256i high = _mm256_cmpeq_epi16(load_codes(from + 32 * i + 16), all);
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
    found |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(bytes))} << (32 * i);
  });
  return found;
}
inline uint64_t matches(const uint32_t* from, uint32_t code) {
  const __m256i all = _mm256_set1_epi32(static_cast<int32_t>(code));
  uint64_t found = 0;
  unroll<8>([&](auto i) {
    const __m256i equal = _mm256_cmpeq_epi32(load_codes(from + 8 * i), all);
    const int part = _mm256_movemask_ps(_mm256_castsi256_ps(equal));
    found |= static_cast<uint64_t>(part) << (8 * i);
  });
  return found;
}

#endif

}  // namespace nativeops::simd
