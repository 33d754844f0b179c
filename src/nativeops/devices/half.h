// SPDX-License-Identifier: Apache-2.0
// bf16 and f16: two-byte numbers that compute as float. Rounding is to nearest, ties to even.
#pragma once
#include <cstdint>
#include <cstring>

#include "nativeops/devices/view.h"

namespace nativeops {

// The bits of one type read as another of the same size.
template <class To, class From>
HOST_DEVICE inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs two types of one size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// The upper half of a float: its range, 8 bits of precision.
struct bf16 {
  uint16_t bits;

  bf16() = default;
  HOST_DEVICE explicit bf16(float value) {
    const uint32_t u = bit_cast<uint32_t>(value);
    const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>((nan ? (u | 0x00400000u) : rounded) >> 16);  // a quiet NaN
  }
  HOST_DEVICE operator float() const { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE binary16: 11 bits of precision, largest number 65504. Written without branches, and
// without floats below 2^-126, which a framework's thread may be set to flush to zero.
struct f16 {
  uint16_t bits;

  f16() = default;
  HOST_DEVICE explicit f16(float value) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const uint32_t u = bit_cast<uint32_t>(value), sign = u & 0x80000000u, size = u ^ sign;
    const uint32_t special = size > 0x7f800000u ? 0x7e00u | (size >> 13 & 0x3ffu) : 0x7c00u;
    const uint32_t normal = (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13;
    const float shifted = bit_cast<float>(size) + 0.5f;  // rounds to a multiple of 2^-24
    const uint32_t small = bit_cast<uint32_t>(shifted) - 0x3f000000u;
    const uint32_t finite = size < 0x38800000u ? small : normal;
    bits = static_cast<uint16_t>((size >= 0x47800000u ? special : finite) | sign >> 16);
#endif
  }
  HOST_DEVICE operator float() const {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const uint32_t h = bits, sign = (h & 0x8000u) << 16, size = h & 0x7fffu;
    const uint32_t special = (size << 13) + 0x70000000u, normal = (size << 13) + 0x38000000u;
    const float small = static_cast<float>(static_cast<int32_t>(size)) * 0x1p-24f;
    const uint32_t finite = size < 0x400u ? bit_cast<uint32_t>(small) : normal;
    return bit_cast<float>((size >= 0x7c00u ? special : finite) | sign);
#endif
  }
};

// Eight of them, as a thread reads them at once.
struct alignas(16) Words {
  uint32_t word[4];
};

// The type in which sums of T are kept, and in which T computes.
template <class T>
struct AccumOf {
  using type = T;
};
template <class T>
struct AccumOf<const T> : AccumOf<T> {};
template <>
struct AccumOf<bf16> {
  using type = float;
};
template <>
struct AccumOf<f16> {
  using type = float;
};
template <class T>
using Accum = typename AccumOf<T>::type;

}  // namespace nativeops
