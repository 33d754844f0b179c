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

// body(i) for i in [0, n), on this thread alone where `steps`, the vector operations, are few.
template <class F>
void parallel_if_large(Device& dev, int64_t n, int64_t steps, F&& body) {
  if (worth_sharing(dev, steps)) return dev.parallel(n, body);
  for (int64_t i = 0; i < n; ++i) body(i);
}

}  // namespace nativeops::tuned
