// SPDX-License-Identifier: Apache-2.0
// How work is divided, and when it is worth more than one thread.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/device.h"

namespace nativeops::tuned {

// Waking a thread takes longer than so many vector operations (about 20 us; Zen4 EPYC, 2026-11).
constexpr int64_t kWorthWaking = 24000;

// To meet after a phase costs what two threads save on so many vector operations (Zen5 EPYC,
// 2026-11).
constexpr int64_t kWorthMeeting = 1200;

// Where others take the CPUs, a thread that is stopped meanwhile costs so many: 2.4 ms of two.
constexpr int64_t kWorthStalling = 8000000;

inline bool worth_sharing(const Device& dev, int64_t steps) {
  return steps > kWorthWaking && (steps > kWorthStalling || !dev.crowded());
}

// Whether two layers of so many steps, in which `first` and `second` numbers are multiplied, are
// done sooner by a thread for each of them than by all threads, which meet after every step, one
// after the other, and their weights leave room in a cache: see "at once" in benchmarks/NOTES.md.
inline bool worth_a_thread_each(const Device& dev, int64_t steps, int64_t first, int64_t second) {
  constexpr int64_t kLanes = 16, kMost = 16384;  // vector operations
  const int64_t threads = dev.num_threads(), both = (first + second) / kLanes,
                longer = (first > second ? first : second) / kLanes;
  return threads > 1 && longer <= kMost && longer <= both / threads + 2 * kWorthMeeting &&
         worth_sharing(dev, steps * both);
}

// body(i) for i in [0, n), on this thread alone where `steps`, the vector operations, are few.
template <class F>
void parallel_if_large(Device& dev, int64_t n, int64_t steps, F&& body) {
  if (worth_sharing(dev, steps)) return dev.spread(n, body);
  for (int64_t i = 0; i < n; ++i) body(i);
}

}  // namespace nativeops::tuned
