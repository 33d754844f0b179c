// SPDX-License-Identifier: Apache-2.0
// atomicAdd on the host, as CUDA has it; it returns the value before.
#pragma once
#include <cstdint>

#include "nativeops/devices/half.h"

namespace nativeops {

template <class T>
T atomic_add(T* target, T value) {
  return __atomic_fetch_add(target, value, __ATOMIC_RELAXED);
}
inline int atomicAdd(int* target, int value) { return atomic_add(target, value); }
inline unsigned atomicAdd(unsigned* target, unsigned value) { return atomic_add(target, value); }
inline int64_t atomicAdd(int64_t* target, int64_t value) { return atomic_add(target, value); }

// Not for built-in ops: the order of the threads decides how such a sum is rounded, so results are
// not reproducible. A user's kernel may choose that.
#if defined(NATIVEOPS_USER_OP)
template <class Bits, class T>
T atomic_add_as(T* target, T value) {
  Bits* bits = reinterpret_cast<Bits*>(target);
  Bits before = __atomic_load_n(bits, __ATOMIC_RELAXED), after;
  do {
    after = bit_cast<Bits>(bit_cast<T>(before) + value);
  } while (
      !__atomic_compare_exchange_n(bits, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return bit_cast<T>(before);
}
inline float atomicAdd(float* target, float value) {
  return atomic_add_as<uint32_t>(target, value);
}
inline double atomicAdd(double* target, double value) {
  return atomic_add_as<uint64_t>(target, value);
}
#endif

}  // namespace nativeops
