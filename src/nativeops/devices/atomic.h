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

// On request only: the order of the threads decides how such a sum is rounded, so results are not
// reproducible. Built-in ops never use it; CUDA has it always.
#if defined(NATIVEOPS_FLOAT_ATOMICS)
inline float atomicAdd(float* target, float value) {
  uint32_t* bits = reinterpret_cast<uint32_t*>(target);
  uint32_t before = __atomic_load_n(bits, __ATOMIC_RELAXED);
  uint32_t after = bit_cast<uint32_t>(bit_cast<float>(before) + value);
  while (!__atomic_compare_exchange_n(bits, &before, after, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
    after = bit_cast<uint32_t>(bit_cast<float>(before) + value);
  }
  return bit_cast<float>(before);
}
#endif

}  // namespace nativeops
