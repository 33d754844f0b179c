// SPDX-License-Identifier: Apache-2.0
// Optimal completion on the CPU: the last row of the table as the sums of its differences. Declared
// in optimal_completion.py.
#pragma once
#include "nativeops/devices/cpu/edit_tables.h"
#include "nativeops/ops/optimal_completion.h"

namespace nativeops::tuned {
namespace edits {

// f(j, D[n, j]) for 0 ≤ j ≤ m: the rows of these tables are the labels of b, so that the last row
// of the definition is their last column.
template <class F>
void walk_down(int64_t n, int64_t m, const uint64_t* plus, const uint64_t* minus, int64_t stride,
               F&& f) {
  int64_t d = n;
  f(int64_t{0}, d);
  for (int64_t first = 0; first < m; first += kBits) {
    uint64_t up = plus[first / kBits * stride], down = minus[first / kBits * stride];
    for (int64_t j = first + 1; j <= std::min(m, first + kBits); ++j, up >>= 1, down >>= 1) {
      d += static_cast<int64_t>(up & 1) - static_cast<int64_t>(down & 1);
      f(j, d);
    }
  }
}

// done(task, least, plus, minus, stride) with the least entry of each pair's last row.
template <class I, class F>
void for_each_least(Device& dev, const nativeops::edits::Sets<I>& of, F&& done) {
  of.check();
  std::vector<Task<I>> tasks;
  for (int64_t i = 0; i < of.a.size(0); ++i) {
    tasks.push_back({sequence(at(of.b, i), of.m(i)), sequence(at(of.a, i), of.n(i)), i});
  }
  run_tables(dev, tasks,
             [&](const Task<I>& task, const uint64_t* plus, const uint64_t* minus, int64_t stride) {
               int64_t least = task.text.n;
               walk_down(task.text.n, task.pattern.n, plus, minus, stride,
                         [&](int64_t, int64_t d) { least = std::min(least, d); });
               done(task, least, plus, minus, stride);
             });
}

}  // namespace edits

template <class I>
void optimal_completion_edit_distance(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len,
                                      In<int32_t, 1> b_len, Out<int32_t, 1> out) {
  const nativeops::edits::Sets<I> of{a, b, a_len, b_len};
  edits::for_each_least(dev, of, [&](const edits::Task<I>& task, int64_t least, auto&&...) {
    out(task.item) = static_cast<int32_t>(least);
  });
}

// A successor does not raise the least distance if it is b[j+1] behind a j that has it; else it
// raises it by one.
template <class I>
void optimal_completion_edit_distance_per_successor(Device& dev, In<I, 2> a, In<I, 2> b,
                                                    In<I, 1> successors, In<int32_t, 1> a_len,
                                                    In<int32_t, 1> b_len, Out<int32_t, 2> out) {
  const nativeops::edits::Sets<I> of{a, b, a_len, b_len};
  const int64_t many = successors.size(0), step = successors.stride(0), to = out.stride(1);
  edits::for_each_least(dev, of,
                        [&](const edits::Task<I>& task, int64_t least, const uint64_t* plus,
                            const uint64_t* minus, int64_t stride) {
                          const I* label = successors.data;
                          int32_t* result = &out(task.item, 0);
                          const int32_t kept = static_cast<int32_t>(least);
                          for (int64_t v = 0; v < many; ++v) result[v * to] = kept + 1;
                          std::vector<I> optimal;
                          edits::walk_down(task.text.n, task.pattern.n, plus, minus, stride,
                                           [&](int64_t j, int64_t d) {
                                             if (d == least && j < task.pattern.n)
                                               optimal.push_back(task.pattern[j]);
                                           });
                          std::sort(optimal.begin(), optimal.end());
                          optimal.erase(std::unique(optimal.begin(), optimal.end()), optimal.end());
                          for (const I next : optimal) {
                            for (int64_t v = 0; v < many; ++v) {
                              if (label[v * step] == next) result[v * to] = kept;
                            }
                          }
                        });
}

}  // namespace nativeops::tuned
