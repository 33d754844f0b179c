// SPDX-License-Identifier: Apache-2.0
// Sums of rows by segment on the CPU, where each segment has many rows: to read memory in order is
// worth more there than to have no memory for sums in between.
#pragma once
#include "nativeops/devices/kernel.h"
#include "segment_sum.h"

namespace nativeops::tuned {

// out[s] = Σ_part Σ x[i] over all i of a part with segment[i] = s, both in order: parts of the rows,
// as many as their sums are worth, whatever the number of threads.
template <class T, class I>
void segment_sum(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t count) {
  using A = Accum<T>;
  constexpr int64_t kMost = 8, kRowsOfEach = 16;  // of a segment, in a part
  const int64_t rows = x.size(0), n = x.size(1);
  const int64_t parts = min2(kMost, rows / (kRowsOfEach * (count + 1)));
  if (parts < 2) return nativeops::segment_sum<T, I>(dev, x, segment, out, count);
  auto memory = dev.workspace<A>(parts * count * n);
  const View<A, 3> sums = dense(memory.data(), parts, count, n);
  for_each_item(dev, parts, [=](Team team, int64_t part) {
    team.each(0, count * n, [sum = &sums(part, 0, 0)](int64_t i) { sum[i] = 0; });
    for (int64_t i = part * rows / parts; i < (part + 1) * rows / parts; ++i) {
      const int64_t s = segment(i);
      if (s < 0 || s >= count) continue;
      const View<A, 1> sum = dense(&sums(part, s, 0), n);
      const In<T, 1> row{&x(i, 0), {n}, {x.stride(1)}};
      team.each(0, n, [=](int64_t k) { sum(k) += A(row(k)); });
    }
  });
  for_each_item(dev, count, [=](Team team, int64_t s) {
    for (int64_t part = 1; part < parts; ++part) {
      const View<A, 1> sum = dense(&sums(0, s, 0), n), other = dense(&sums(part, s, 0), n);
      team.each(0, n, [=](int64_t k) { sum(k) += other(k); });
    }
    team.each(0, n, [=](int64_t k) { out(s, k) = T(sums(0, s, k)); });
  });
}

}  // namespace nativeops::tuned
