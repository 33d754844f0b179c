// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this machine runs.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

namespace nativeops::cpu {

// Linux keeps the AMX tile registers of a process only when it asks for them, once for all threads.
// What the processor and the system know of them is asked first. With tiles in software
// (devices/cpu/soft_tiles.h), for tests, there is nothing to ask for.
inline bool may_use_amx() {
#if defined(NATIVEOPS_SOFT_TILES)
  return true;
#elif defined(__x86_64__) && defined(SYS_arch_prctl)
  constexpr long kRequest = 0x1023, kTileData = 18;
  constexpr unsigned kTileStates = 3u << 17;  // configuration and data, in XCR0
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  const bool tiles = edx >> 24 & 1, bf16 = edx >> 22 & 1;
  if (!tiles || !bf16) return false;
  __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (eax & kTileStates) == kTileStates && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

// Whether there are conversions of float16, which not all compilers can be asked for.
inline bool has_f16c() {
#if defined(__x86_64__)
  unsigned eax = 1, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return ecx >> 29 & 1;
#else
  return false;
#endif
}

// 0 portable, 1 AVX2 + FMA + F16C, 2 AVX-512 (F, BW, DQ, VL, CD), 3 AVX-512 (also bf16) + AMX-bf16.
inline int level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  if (avx512) return __builtin_cpu_supports("avx512bf16") && may_use_amx() ? 3 : 2;
  return avx2 ? 1 : 0;
#else
  return 0;
#endif
}

}  // namespace nativeops::cpu
