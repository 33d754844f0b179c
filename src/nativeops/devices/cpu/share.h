// SPDX-License-Identifier: Apache-2.0
// Tasks shared by threads that have memory of their own.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "nativeops/devices/cpu/work.h"
#include "nativeops/devices/kernel.h"

namespace nativeops::tuned {

// Threads take tasks until none is left; each has a worker, with memory of its own. `steps` is how
// much work all of it is.
template <class Make, class F>
void share(Device& dev, int64_t tasks, int64_t steps, Make make, F body) {
  const int64_t wanted = worth_sharing(dev, steps) ? dev.num_threads() : 1;
  std::atomic<int64_t> next{0};
  dev.spread(std::min(tasks, wanted), [&](int64_t) {
    auto worker = make();
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      body(worker, task);
    }
  });
}

// The same with up to four items at a time, one for each of a thread's workers, which do them side
// by side: a step waits long for the one before it, and for nothing of another item.
// body(workers, first, count) has items first .. first + count - 1.
template <class Make, class F>
void share_side_by_side(Device& dev, int64_t items, int64_t steps, Make make, F body) {
  const int64_t group = std::clamp<int64_t>(items / dev.num_threads(), 1, 4);
  share(
      dev, ceil_div(items, group), steps,
      [&] {
        std::vector<decltype(make())> workers;
        workers.reserve(group);
        for (int64_t k = 0; k < group; ++k) workers.push_back(make());
        return workers;
      },
      [&](auto& workers, int64_t task) {
        const int64_t first = task * group;
        body(workers.data(), first, std::min(group, items - first));
      });
}

}  // namespace nativeops::tuned
