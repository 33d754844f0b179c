// SPDX-License-Identifier: Apache-2.0
// Sums of rows by segment, and their gradient. Declared in segment_sum.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[s] = Σ x[i] over all i with segment[i] = s, in the order of i
//
// The rows are sorted by their segments first: parts of them count, each segment finds its place,
// and the parts put their rows there. Which of two segments comes first depends on the threads; the
// rows of one and their order do not.
template <class T, class I>
void segment_sum(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t count) {
  using A = Accum<T>;
  const int64_t rows = x.size(0), parts = min2<int64_t>(64, 1 + rows / (4096 + count));
  const int64_t part_rows = rows / parts + 1;
  auto memory = dev.workspace<int64_t>(1 + rows + count + parts * count);
  const View<int64_t, 1> taken = dense(memory.data(), 1), sorted = dense(&taken(1), rows);
  const View<int64_t, 1> begin = dense(&sorted(rows), count);
  const View<int64_t, 2> place = dense(&begin(count), parts, count);
  const auto inside = [=] KERNEL(int64_t i) { return segment(i) >= 0 && segment(i) < count; };
  for_each(dev, taken, [=] KERNEL(int64_t i) { taken(i) = 0; });
  for_each(dev, place, [=] KERNEL(int64_t part, int64_t s) { place(part, s) = 0; });
  for_each_item(dev, parts, [=] KERNEL(Team team, int64_t part) {
    team.each(part * part_rows, min2(rows, (part + 1) * part_rows), [=](int64_t i) {
      if (inside(i)) atomicAdd(&place(part, segment(i)), int64_t{1});
    });
  });
  for_each(dev, begin, [=] KERNEL(int64_t s) {
    int64_t total = 0;
    for (int64_t part = 0; part < parts; ++part) total += place(part, s);
    int64_t next = begin(s) = atomicAdd(&taken(0), total);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t own = place(part, s);
      place(part, s) = next;
      next += own;
    }
  });
  for_each_item(dev, parts, [=] KERNEL(Team team, int64_t part) {
    if (team.rank() > 0) return;  // one thread, to keep the order
    for (int64_t i = part * part_rows; i < min2(rows, (part + 1) * part_rows); ++i) {
      if (inside(i)) sorted(place(part, segment(i))++) = i;
    }
  });
  for_each_item<A>(dev, count, x.size(1), [=] KERNEL(Team team, int64_t s, View<A, 1> sum) {
    const int64_t n = x.size(1), end = place(parts - 1, s);
    int64_t at = begin(s);
    team.each(0, n, [=](int64_t k) { sum(k) = 0; });
    for (; at + 4 <= end; at += 4) {  // four rows are fetched at once
      const int64_t a = sorted(at), b = sorted(at + 1), c = sorted(at + 2), d = sorted(at + 3);
      team.each(0, n, [=](int64_t k) {
        sum(k) = (((sum(k) + A(x(a, k))) + A(x(b, k))) + A(x(c, k))) + A(x(d, k));
      });
    }
    for (; at < end; ++at) {
      team.each(0, n, [=, i = sorted(at)](int64_t k) { sum(k) += A(x(i, k)); });
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
