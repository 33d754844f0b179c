// SPDX-License-Identifier: Apache-2.0
// Sums of rows by segment, and their gradient. Declared in segment_sum.py.
#pragma once
#include "nativeops/devices/in_order.h"

namespace nativeops {

// The rows of each group of 2^bits segments, in their order: row i of segment s as (i << bits) +
// (s mod 2^bits), in `order` from range(group, 0) to range(group, 1).
template <class I>
void put_rows_in_order(Device& dev, In<I, 1> segment, int64_t count, int bits,
                       View<int64_t, 2> range, View<int64_t, 1> order) {
  const auto group = [=] KERNEL(int64_t i) {
    const int64_t s = segment(i);
    return s >= 0 && s < count ? s >> bits : -1;
  };
  const auto row = [=] KERNEL(int64_t i) {
    const int64_t s = segment(i);
    return (i << bits) + (s & ((int64_t{1} << bits) - 1));
  };
  put_in_order(dev, segment.size(0), group, row, range, order);
}

// out[s] = Σ x[i] over all i with segment[i] = s, in the order of i
template <class T, class I>
void segment_sum(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t count) {
  using A = Accum<T>;
  const int64_t rows = x.size(0), n = x.size(1);
  auto memory = dev.workspace<int64_t>(2 * count + rows);
  const View<int64_t, 2> range = dense(memory.data(), count, 2);
  const View<int64_t, 1> order = dense(&range(count, 0), rows);
  put_rows_in_order(dev, segment, count, 0, range, order);
  const auto add = [=] KERNEL(Team team, int64_t s, View<A, 1> sum) {
    const auto term = [=](int64_t at, int64_t k) { return A(x(order(at), k)); };
    team.sums(sum, range(s, 0), range(s, 1), term);
    team.fill(at(out, s), [=](int64_t k) { return sum(k); });
  };
  for_each_item<A>(dev, count, n, add, n);
}

// out[i] = x[segment[i]], 0 where there is no such row
template <class T, class I>
void segment_spread(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out) {
  fill(dev, out, [=] KERNEL(int64_t i, int64_t k) {
    const int64_t s = segment(i);
    return s >= 0 && s < x.size(0) ? x(s, k) : T(0);
  });
}

}  // namespace nativeops
