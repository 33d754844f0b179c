// SPDX-License-Identifier: Apache-2.0
// Sums over rows on the CPU: row by row, in parts of so many rows that are added in order.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/team.h"

namespace nativeops {

// How many rows suit a team that adds up what belongs to the columns, one row after another.
constexpr int64_t kPartRows = 32;

// to[k] = Σ_i rows[i, k] in the order of i; there is one at least, and all are used up.
//   add_rows(dev, parts, d_bias);
template <class A, class T>
void add_rows(Device& dev, View<A, 2> rows, View<T, 1> to) {
  constexpr int64_t kStrip = 256;
  const int64_t n = to.size(0);
  for_each_item(dev, ceil_div(n, kStrip), [=](Team team, int64_t strip) {
    const int64_t first = strip * kStrip, last = min2(n, first + kStrip);
    for (int64_t i = 1; i < rows.size(0); ++i) {
      team.each(first, last, [=](int64_t k) { rows(0, k) += rows(i, k); });
    }
    team.each(first, last, [=](int64_t k) { to(k) = T(rows(0, k)); });
  });
}

// to[k] = Σ_i f(i, k) over 0 <= i < rows: in parts of some rows, that are added in order in the
// end. f may write results of its own at (i, k).
//   sum_rows(dev, x.size(0), d_bias, [=] KERNEL(int64_t b, int64_t k) { return ..; });
template <class T, class F>
void sum_rows(Device& dev, int64_t rows, View<T, 1> to, F f) {
  using A = Accum<T>;
  const int64_t n = to.size(0), parts = 1 + rows / kPartRows;
  auto memory = dev.workspace<A>(parts * n);
  const View<A, 2> sums = dense(memory.data(), parts, n);
  for_each_item(dev, parts, [=](Team team, int64_t part) {
    team.sums(at(sums, part), part * kPartRows, min2(rows, (part + 1) * kPartRows), f);
  });
  add_rows(dev, sums, to);
}

}  // namespace nativeops
