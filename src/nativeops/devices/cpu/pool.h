// SPDX-License-Identifier: Apache-2.0
// A small pool of threads: one job at a time, its tasks taken in any order.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace nativeops::cpu {

// body(context, i) for all i below n. Each thread has a range of its own, the same in every job of
// as many tasks: what one kernel has written lies in the caches of the thread that reads it in the
// next one. Who is done helps the others. Many tasks are taken at a time while many are left, as a
// counter that several threads change costs more than a small task; one by one in the end.
class Job {
 public:
  Job(int64_t n, int64_t threads, void (*body)(void* context, int64_t i), void* context)
      : ranges_(std::max<int64_t>(1, std::min({n, threads, kMost}))),
        body_(body),
        context_(context) {
    for (int64_t r = 0; r < ranges_; ++r) {
      range_[r].next.store(r * n / ranges_, std::memory_order_relaxed);
      range_[r].end = (r + 1) * n / ranges_;
    }
  }

  // By the thread with this number.
  void work(int64_t home) {
    for (int64_t r = 0; r < ranges_; ++r) take(range_[(home + r) % ranges_]);
  }

 private:
  static constexpr int64_t kMost = 64, kShares = 16;

  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };

  void take(Range& range) {
    for (int64_t i = range.next.load(std::memory_order_relaxed); i < range.end;) {
      const int64_t end = i + std::max<int64_t>(1, (range.end - i) / kShares);
      if (!range.next.compare_exchange_weak(i, end, std::memory_order_relaxed)) continue;
      for (; i < end; ++i) body_(context_, i);
      i = range.next.load(std::memory_order_relaxed);
    }
  }

  const int64_t ranges_;
  void (*const body_)(void*, int64_t);
  void* const context_;
  Range range_[kMost];
};

// Runs body(context, i) for every i in [0, n) and returns when all are done. The caller works too.
// A second caller, while the pool is busy or from inside a task, runs its tasks alone: the number
// of busy threads never exceeds the pool's by more than the callers.
void parallel(int64_t n, void (*body)(void* context, int64_t i), void* context);
// The same with at most so many threads. A pool of another size is made anew.
void parallel_on(int32_t threads, int64_t n, void (*body)(void* context, int64_t i), void* context);

// The same by the caller alone.
inline void run_alone(int64_t n, void (*body)(void* context, int64_t i), void* context) {
  for (int64_t i = 0; i < n; ++i) body(context, i);
}

// At least 1. The default is the number of CPUs that this process may use.
void set_num_threads(int32_t n);
int32_t num_threads();
int32_t usable_cpus();
// Whether this process was forked from one that had called this function or run a job, or that
// somebody else has noted.
bool forked();
void note_fork();

}  // namespace nativeops::cpu
