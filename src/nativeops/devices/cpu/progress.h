// SPDX-License-Identifier: Apache-2.0
// How far one of two pieces of work is that run at once, where the other follows it step by step.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <limits>

namespace nativeops::tuned {

class Progress {
 public:
  // By one thread alone: so many steps are done, and all that they wrote may be read.
  void reach(int64_t steps) {
    if (steps > done_.load(std::memory_order_relaxed)) {
      done_.store(steps, std::memory_order_release);
    }
  }
  // By the other: waits until they are.
  void wait_for(int64_t steps) const {
    for (int spins = 0; done_.load(std::memory_order_acquire) < steps;) {
      if (++spins < kSpins) {
        __builtin_ia32_pause();
      } else {
        sched_yield();
      }
    }
  }

 private:
  static constexpr int kSpins = 2000;  // about 40 ns each

  alignas(64) std::atomic<int64_t> done_{0};
};

// Nobody waits for steps of what has ended, in whatever way.
class EndOfProgress {
 public:
  explicit EndOfProgress(Progress* of) : of_(of) {}
  ~EndOfProgress() {
    if (of_) of_->reach(std::numeric_limits<int64_t>::max());
  }
  EndOfProgress(const EndOfProgress&) = delete;
  EndOfProgress& operator=(const EndOfProgress&) = delete;

 private:
  Progress* const of_;
};

}  // namespace nativeops::tuned
