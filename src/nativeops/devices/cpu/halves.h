// SPDX-License-Identifier: Apache-2.0
// A vector of floats as bf16.
#pragma once
#include <cstdint>
#include <cstring>

#include "nativeops/devices/cpu/simd.h"

namespace nativeops::simd {

using FloatBits = uint32_t __attribute__((vector_size(kVectorBytes)));
using Halves = uint16_t __attribute__((vector_size(kVectorBytes / 2)));

inline FloatBits bits_of(Vec<float> a) { return reinterpret_cast<FloatBits>(a.raw); }
inline Vec<float> from_bits(FloatBits a) { return {reinterpret_cast<Vec<float>::Raw>(a)}; }

// The nearest bf16, ties to even, as a float whose lower half is 0; NaN stays NaN.
inline Vec<float> to_bf16(Vec<float> a) {
  const FloatBits bits = bits_of(a), nearest = bits + 0x7fff + (bits >> 16 & 1);
  return from_bits((a.raw == a.raw ? nearest : bits | 0x400000) & 0xffff0000);
}
// Its upper half: the bf16 that is not larger in size.
inline Vec<float> cut_to_bf16(Vec<float> a) { return from_bits(bits_of(a) & 0xffff0000); }

// Two rows of such floats as words: the first in the lower halves.
inline Vec<float> words_of(Vec<float> first, Vec<float> second) {
  return from_bits(bits_of(first) >> 16 | bits_of(second));
}

// A row of such floats as bf16, one behind the other.
inline void store_halves(bf16* to, Vec<float> a) {
  const auto halves = __builtin_convertvector(bits_of(a) >> 16, Halves);
  memcpy(to, &halves, sizeof halves);
}

}  // namespace nativeops::simd
