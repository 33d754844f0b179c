// SPDX-License-Identifier: Apache-2.0
// Sums of rows by segment on the CPU: to read memory in order is worth more there than many
// threads, or than to have no memory for sums in between.
#pragma once
#include "nativeops/devices/kernel.h"
#include "segment_sum.h"

namespace nativeops::tuned {

// out[s] = Σ_part Σ x[i] over all i of a part with segment[i] = s, both in order: parts of the
// rows, as many as their sums are worth, whatever the number of threads. Where segments have too
// few rows for that, strips of columns instead; long rows are read fast in any order.
template <class T, class I>
void segment_sum(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t count) {
  using A = Accum<T>;
  constexpr int64_t kMost = 8, kRowsOfEach = 16;         // of a segment, in a part
  constexpr int64_t kStrip = 32, kLong = 128;            // columns
  constexpr int64_t kAhead = 8, kLine = 64 / sizeof(A);  // rows; numbers that are fetched at once
  const int64_t rows = x.size(0), n = x.size(1);
  const int64_t parts = max2<int64_t>(1, min2(kMost, rows / (kRowsOfEach * (count + 1))));
  if (parts == 1 && n > kLong) return nativeops::segment_sum<T, I>(dev, x, segment, out, count);
  const int64_t width = parts > 1 ? max2<int64_t>(1, n) : kStrip, strips = (n + width - 1) / width;
  auto memory = dev.workspace<A>(parts * strips * count * width);
  const View<A, 3> sums = dense(memory.data(), parts * strips, count, width);
  for_each_item(dev, parts * strips, [=](Team team, int64_t item) {
    const int64_t part = item / strips, first = item % strips * width;
    const int64_t own = min2(width, n - first), end = (part + 1) * rows / parts;
    team.each(0, count * width, [sum = &sums(item, 0, 0)](int64_t i) { sum[i] = 0; });
    const auto exists = [=](int64_t s) { return s >= 0 && s < count; };
    for (int64_t i = part * rows / parts; i < end; ++i) {
      // The sums of a later row come from far, too.
      const int64_t s = segment(i), later = segment(min2(i + kAhead, end - 1));
      for (int64_t k = 0; exists(later) && k < own; k += kLine) {
        __builtin_prefetch(&sums(item, later, k), 1);
      }
      if (!exists(s)) continue;
      A* const sum = &sums(item, s, 0);
      const T* const row = &x(i, first);
      if (x.stride(1) == 1) {
        team.each(0, own, [=](int64_t k) { sum[k] += A(row[k]); });
      } else {
        team.each(0, own, [=](int64_t k) { sum[k] += A(row[k * x.stride(1)]); });
      }
    }
  });
  for_each_item(dev, count, [=](Team team, int64_t s) {
    for (int64_t strip = 0; strip < strips; ++strip) {
      const int64_t first = strip * width, own = min2(width, n - first);
      const View<A, 1> sum = dense(&sums(strip, s, 0), own);
      for (int64_t item = strip + strips; item < parts * strips; item += strips) {
        const View<A, 1> more = dense(&sums(item, s, 0), own);
        team.each(0, own, [=](int64_t k) { sum(k) += more(k); });
      }
      team.each(0, own, [=](int64_t k) { out(s, first + k) = T(sum(k)); });
    }
  });
}

}  // namespace nativeops::tuned
