// SPDX-License-Identifier: Apache-2.0
// What a thread waits for that does not meet the others: how far one of two pieces of work is that
// run at once, where the other follows it step by step.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <limits>

namespace nativeops::tuned {

// Waits for a thread that is at work: briefly, then others may have the processor.
template <class F>
void wait_until(F&& is_so) {
  constexpr int kSpins = 2000;  // about 40 ns each
  for (int spins = 0; !is_so();) {
    if (++spins < kSpins) {
      __builtin_ia32_pause();
    } else {
      sched_yield();
    }
  }
}

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
    wait_until([&] { return done_.load(std::memory_order_acquire) >= steps; });
  }

 private:
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
