// SPDX-License-Identifier: Apache-2.0
// Sums of rows by segment, and their gradient. Declared in segment_sum.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// The rows of each group of 2^bits segments, in their order: row i of segment s as (i << bits) +
// (s mod 2^bits), in `order` from range(group, 0) to range(group, 1).
//
// Parts of the rows count, each group finds its place, and the parts put their rows there. Which of
// two groups comes first depends on the threads; the rows of one and their order do not.
template <class I>
void put_in_order(Device& dev, In<I, 1> segment, int64_t count, int bits, View<int64_t, 2> range,
                  View<int64_t, 1> order) {
  const int64_t rows = segment.size(0), groups = range.size(0);
  const int64_t parts = min2<int64_t>(64, 1 + rows / (4096 + groups));
  auto memory = dev.workspace<int64_t>(1 + parts * groups);
  const View<int64_t, 1> zeros = dense(memory.data(), 1 + parts * groups);
  const View<int64_t, 2> place = dense(&zeros(1), parts, groups);
  const auto inside = [=] KERNEL(int64_t i) { return segment(i) >= 0 && segment(i) < count; };
  for_each(dev, zeros, [=] KERNEL(int64_t i) { zeros(i) = 0; });
  for_each_item(dev, parts, [=] KERNEL(Team team, int64_t part) {
    team.each(part * rows / parts, (part + 1) * rows / parts, [=](int64_t i) {
      if (inside(i)) atomicAdd(&place(part, segment(i) >> bits), int64_t{1});
    });
  });
  for_each_item(dev, groups, [=] KERNEL(Team team, int64_t group) {
    const int64_t total = team.sum(0, parts, [=](int64_t part) { return place(part, group); });
    if (team.rank() > 0) return;
    int64_t next = range(group, 0) = atomicAdd(&zeros(0), total);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t own = place(part, group);
      place(part, group) = next;
      next += own;
    }
    range(group, 1) = next;
  });
  for_each_item(dev, parts, [=] KERNEL(Team team, int64_t part) {
    if (team.rank() > 0) return;  // one thread, to keep the order
    for (int64_t i = part * rows / parts; i < (part + 1) * rows / parts; ++i) {
      const int64_t s = segment(i), group = s >> bits;
      if (inside(i)) order(place(part, group)++) = (i << bits) + (s - (group << bits));
    }
  });
}

// out[s] = Σ x[i] over all i with segment[i] = s, in the order of i
template <class T, class I>
void segment_sum(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t count) {
  using A = Accum<T>;
  const int64_t rows = x.size(0), n = x.size(1);
  auto memory = dev.workspace<int64_t>(2 * count + rows);
  const View<int64_t, 2> range = dense(memory.data(), count, 2);
  const View<int64_t, 1> order = dense(&range(count, 0), rows);
  put_in_order(dev, segment, count, 0, range, order);
  for_each_item<A>(dev, count, n, [=] KERNEL(Team team, int64_t s, View<A, 1> sum) {
    team.each(0, n, [=](int64_t k) { sum(k) = 0; });
    for (int64_t at = range(s, 0); at < range(s, 1); ++at) {
      team.each(0, n, [=, i = order(at)](int64_t k) { sum(k) += A(x(i, k)); });
    }
    team.each(0, n, [=](int64_t k) { out(s, k) = T(sum(k)); });
  });
}

// out[i] = x[segment[i]], 0 where there is no such row
template <class T, class I>
void segment_spread(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out) {
  for_each(dev, out, [=] KERNEL(int64_t i, int64_t k) {
    const int64_t s = segment(i);
    out(i, k) = s >= 0 && s < x.size(0) ? x(s, k) : T(0);
  });
}

}  // namespace nativeops
