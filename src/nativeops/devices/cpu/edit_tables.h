// SPDX-License-Identifier: Apache-2.0
// The edit distance tables of a batch of pairs: the differences down the last column of each, by
// the kernel that suits its size, on all threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "nativeops/devices/cpu/edit_chain.h"
#include "nativeops/devices/cpu/edit_lanes.h"

namespace nativeops::tuned::edits {

template <class I>
Sequence<I> sequence(const View<const I, 1>& labels, int64_t n) {
  return {labels.data, labels.stride(0), n};
}

// The pairs of a group end at about the same column where they are in the order of their texts'
// lengths; counted, as sorting would take longer than some tables.
template <class I>
void order_by_columns(std::vector<Task<I>>& tasks) {
  int64_t most = 0;
  bool ordered = true;
  for (size_t i = 0; i < tasks.size(); ++i) {
    most = std::max(most, tasks[i].text.n);
    ordered = ordered && (i == 0 || tasks[i - 1].text.n <= tasks[i].text.n);
  }
  if (ordered) return;
  const int64_t share = most / 4096 + 1;  // of lengths that count as one
  std::vector<int64_t> begin(most / share + 2, 0);
  for (const auto& task : tasks) ++begin[task.text.n / share + 1];
  for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<Task<I>> sorted(tasks.size());
  for (const auto& task : tasks) sorted[begin[task.text.n / share]++] = task;
  tasks.swap(sorted);
}

// task_of(i) for 0 ≤ i < count, in the order in which groups are made of them.
template <class I, class Tasks, class F>
void run_groups(Device& dev, int64_t count, int64_t cycles, Tasks&& task_of, F&& done) {
  const int64_t groups = ceil_div(count, kWords);
  // A part that is not worth a thread of its own is none.
  const int64_t parts = std::clamp<int64_t>(cycles / 12000, std::min<int64_t>(1, groups), groups);
  dev.parallel(parts, [&](int64_t part) {
    for (int64_t g = part * groups / parts; g < (part + 1) * groups / parts; ++g) {
      const int64_t first = g * kWords;
      const int many = static_cast<int>(std::min<int64_t>(kWords, count - first));
      Task<I> tasks[kWords];
      for (int k = 0; k < many; ++k) tasks[k] = task_of(first + k);
      run_lanes(dev, tasks, many, [&](int k, const uint64_t* plus, const uint64_t* minus) {
        done(tasks[k], plus, minus, int64_t{kWords});
      });
    }
  });
}

// What a pair costs, about.
inline int64_t cycles_of(int64_t rows, int64_t columns) {
  return 200 + 3 * words_for(rows) * columns;
}

template <class I, class F>
void run_short(Device& dev, std::vector<Task<I>>& tasks, F&& done) {
  order_by_columns(tasks);
  int64_t cycles = 0;
  for (const auto& task : tasks) cycles += cycles_of(task.pattern.n, task.text.n);
  run_groups<I>(
      dev, static_cast<int64_t>(tasks.size()), cycles,
      [&](int64_t i) -> const Task<I>& { return tasks[i]; }, done);
}

// Pairs in turn on all threads; those that are left over, each on all of them.
template <class I, class F>
void run_long(Device& dev, const std::vector<Task<I>>& tasks, F&& done) {
  const int64_t all = static_cast<int64_t>(tasks.size()), even = all - all % dev.num_threads();
  auto finish = [&](const Task<I>& task, const LongPair<I>& pair) {
    done(task, pair.plus(), pair.minus(), int64_t{1});
  };
  dev.parallel(even, [&](int64_t i) {
    LongPair<I> pair(tasks[i].pattern, tasks[i].text);
    pair.run();
    finish(tasks[i], pair);
  });
  for (int64_t i = even; i < all; ++i) {
    LongPair<I> pair(tasks[i].pattern, tasks[i].text);
    pair.run(dev);
    finish(tasks[i], pair);
  }
}

// done(task, plus, minus, stride): the words of a task's differences, `stride` apart.
template <class I, class F>
void run_tables(Device& dev, const std::vector<Task<I>>& tasks, F&& done) {
  const auto up_to = [&](int64_t rows) {
    return std::count_if(tasks.begin(), tasks.end(),
                         [=](const Task<I>& task) { return task.pattern.n <= rows; });
  };
  const int64_t most = up_to(kMiddle) - up_to(kShort) >= kWords ? kMiddle : kShort;
  std::vector<Task<I>> shorter, longer;
  shorter.reserve(tasks.size());
  for (const auto& task : tasks) (task.pattern.n <= most ? shorter : longer).push_back(task);
  run_short(dev, shorter, done);
  run_long(dev, longer, done);
}

}  // namespace nativeops::tuned::edits
