// SPDX-License-Identifier: Apache-2.0
// A small pool of threads: one job at a time, its tasks taken in any order.
#pragma once
#include <cstdint>

namespace nativeops::cpu {

// Runs body(context, i) for every i in [0, n) and returns when all are done. The caller works too.
// A second caller, while the pool is busy or from inside a task, runs its tasks alone: the number
// of busy threads never exceeds the pool's by more than the callers.
void parallel(int64_t n, void (*body)(void* context, int64_t i), void* context);

// At least 1. The default is the number of CPUs that this process may use.
void set_num_threads(int32_t n);
int32_t num_threads();
int32_t usable_cpus();
// Whether this process was forked from one that had called this function or run a job.
bool forked();

}  // namespace nativeops::cpu
