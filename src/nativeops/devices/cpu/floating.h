// SPDX-License-Identifier: Apache-2.0
// The floating point state of a thread. TensorFlow runs kernels with small numbers taken as zero,
// and a thread inherits the state of the one that starts it: without this, results would depend on
// who called first, and on which thread computed what.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nativeops::cpu {

// From here to the end of the scope no number is flushed to zero.
class ExactSmallNumbers {
 public:
#if defined(__x86_64__)
  ExactSmallNumbers() : before_(_mm_getcsr()) {
    if (before_ & kFlush) _mm_setcsr(before_ & ~kFlush);
  }
  ~ExactSmallNumbers() {
    if (before_ & kFlush) _mm_setcsr(before_);
  }

 private:
  static constexpr uint32_t kFlush = 0x8040;  // of results, and of inputs
  uint32_t before_;
#elif defined(__aarch64__)
  ExactSmallNumbers() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    if (before_ & kFlush) __asm__ volatile("msr fpcr, %0" ::"r"(before_ & ~kFlush));
  }
  ~ExactSmallNumbers() {
    if (before_ & kFlush) __asm__ volatile("msr fpcr, %0" ::"r"(before_));
  }

 private:
  static constexpr uint64_t kFlush = 1 << 24;
  uint64_t before_;
#endif
 public:
  ExactSmallNumbers(const ExactSmallNumbers&) = delete;
  ExactSmallNumbers& operator=(const ExactSmallNumbers&) = delete;
};

}  // namespace nativeops::cpu
