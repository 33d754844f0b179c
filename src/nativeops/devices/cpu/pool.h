// SPDX-License-Identifier: Apache-2.0
// A small pool of threads: one job at a time, its tasks taken in any order.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace nativeops::cpu {

// body(context, i) for all i below n: threads take some until none is left. Many at a time while
// many are left, as a counter that all of them change costs more than a small task; one by one in
// the end.
class Job {
 public:
  Job(int64_t n, int64_t threads, void (*body)(void* context, int64_t i), void* context)
      : n_(n), shares_(16 * threads), body_(body), context_(context) {}

  void work() {
    for (int64_t i = next_.load(std::memory_order_relaxed); i < n_;) {
      const int64_t end = i + std::max<int64_t>(1, (n_ - i) / shares_);
      if (!next_.compare_exchange_weak(i, end, std::memory_order_relaxed)) continue;
      for (; i < end; ++i) body_(context_, i);
      i = next_.load(std::memory_order_relaxed);
    }
  }

 private:
  const int64_t n_, shares_;
  void (*const body_)(void*, int64_t);
  void* const context_;
  std::atomic<int64_t> next_{0};
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
// Whether this process was forked from one that had called this function or run a job.
bool forked();

}  // namespace nativeops::cpu
