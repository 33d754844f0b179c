// SPDX-License-Identifier: Apache-2.0
// Vectors for code that is compiled for every instruction set, the portable one among them: those
// of simd.h, or the few words that such code uses, for the 16 bytes that every CPU has.
#pragma once
#include <cstring>

#include "nativeops/devices/cpu/unroll.h"
#if NATIVEOPS_LEVEL > 0
#include "nativeops/devices/cpu/simd.h"
#else

namespace nativeops::simd {

template <class T>
struct Vec {
  typedef T Raw __attribute__((vector_size(16)));
  Raw raw;

  friend Vec operator+(Vec a, Vec b) { return {a.raw + b.raw}; }
};
template <class T>
constexpr int kLanes = 16 / static_cast<int>(sizeof(T));

template <class T>
Vec<T> zero() {
  return {typename Vec<T>::Raw{}};
}
template <class T>
Vec<T> broadcast_from(const T* from) {
  return {*from - typename Vec<T>::Raw{}};
}
template <class T>
Vec<T> load(const T* from) {
  Vec<T> a;
  std::memcpy(&a.raw, from, sizeof a.raw);
  return a;
}
template <class T>
void store(T* to, Vec<T> a) {
  std::memcpy(to, &a.raw, sizeof a.raw);
}
template <class T>
Vec<T> fma(Vec<T> a, Vec<T> b, Vec<T> c) {
  return {a.raw * b.raw + c.raw};
}

}  // namespace nativeops::simd
#endif
