// SPDX-License-Identifier: Apache-2.0
// Whether other processes take the CPUs of the threads that share work. A thread that is stopped in
// the middle of a small task holds up all who wait for it, for the milliseconds of another's turn;
// work that is done in less is then done sooner by one thread.
#pragma once
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace nativeops::cpu {

// All times are nanoseconds.
inline int64_t time_of(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

// A loss of time says that there is a competitor; for some time from then on the threads are
// crowded. If the next loss follows soon after that time, it was too short, and becomes twice as
// long: what is lost by trying again whether the competitor is still there gets small.
class Crowding {
 public:
  static constexpr int64_t kLoss = 1000000;  // the system's own short tasks take less
  static constexpr int64_t kFirst = 8 * kLoss, kLongest = 256 * kLoss, kSoon = 32 * kLoss;

  // A thread had a part in a job from `begin` to `end`; in between it ran for `ran`.
  void took_part(int64_t begin, int64_t end, int64_t ran) {
    if (end - begin - ran < kLoss) return;
    int64_t until = until_.load(std::memory_order_relaxed);
    if (end < until) return;
    const int64_t before = length_.load(std::memory_order_relaxed);
    const int64_t length = end - until < kSoon ? std::min(2 * before, kLongest) : kFirst;
    // Of threads that lost time in one job one sets the time.
    if (until_.compare_exchange_strong(until, end + length, std::memory_order_relaxed)) {
      length_.store(length, std::memory_order_relaxed);
    }
  }

  bool at(int64_t now) const { return now < until_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> until_{-kSoon}, length_{kFirst};
};

// Tells how much of the time since a job began its thread ran, at the end of the scope.
class Part {
 public:
  Part(Crowding& crowding, int64_t begin)
      : crowding_(crowding), begin_(begin), ran_(time_of(CLOCK_THREAD_CPUTIME_ID)) {}
  ~Part() {
    const int64_t ran = time_of(CLOCK_THREAD_CPUTIME_ID) - ran_;
    crowding_.took_part(begin_, time_of(CLOCK_MONOTONIC), ran);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

 private:
  Crowding& crowding_;
  const int64_t begin_, ran_;
};

}  // namespace nativeops::cpu
