// SPDX-License-Identifier: Apache-2.0
// Sums of rows by segment on the CPU: rows are read once, in their order while the caches hold all
// sums, and otherwise for as many segments at a time as they hold the sums of.
#pragma once
#include "nativeops/devices/cpu/short_rows.h"
#include "segment_sum.h"

namespace nativeops::tuned {

// out[s] = Σ_part Σ x[i] over all i of a part with segment[i] = s, both in order. The result's own
// memory holds the first part's sums where it can, which leaves more of the third cache. Where
// there are few rows for each of many sums, each thread has a range of the segments.
template <class T, class I, class A = Accum<T>>
void sum_in_parts(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t parts,
                  bool by_ranges) {
  const int64_t n = x.size(1), count = out.size(0), ranges = by_ranges ? dev.num_threads() : 1;
  const bool in_place = std::is_same_v<A, T> && out.stride(1) == 1 && out.stride(0) == n;
  auto memory = dev.workspace<A>((parts - in_place) * count * n);
  const View<A, 3> sums = dense(memory.data(), parts - in_place, count, n);
  for_each_item(dev, parts * ranges, [=](Team, int64_t task) {
    const int64_t part = task / ranges, first = task % ranges * count / ranges;
    A* const own = in_place && part == 0 ? reinterpret_cast<A*>(out.data)
                                         : sums.data + (part - in_place) * count * n;
    const View<A, 2> sum = dense(own + first * n, (task % ranges + 1) * count / ranges - first, n);
    std::fill_n(sum.data, sum.count(), A(0));
    if (by_ranges) return add_rows_of_range(sum, x, segment, first);
    add_rows_by(sum, x, segment, part * x.size(0) / parts, (part + 1) * x.size(0) / parts);
  });
  add_parts(dev, sums, out, in_place);
}

// The same in parts where segments have rows enough for each of them and all sums fit into the
// third cache; otherwise by ranges, or, if they are long, rows are put in order first, for 2^bits
// segments whose sums fit into the second.
template <class T, class I, class A = Accum<T>>
void segment_sum(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t count) {
  constexpr int64_t kFew = 16384, kThird = 28 << 20, kSecond = 256 << 10, kEarly = 8 << 10;
  const int64_t rows = x.size(0), n = x.size(1), bytes = max2<int64_t>(1, n * sizeof(A));
  const int64_t least = bytes < 64 ? 1 : 4;  // rows of a segment
  int64_t parts = 8, bits = 0;
  while (parts > 1 && (rows * n < kFew || rows < (parts > 2 ? 16 * parts : least) * count ||
                       parts * count * bytes > kThird))
    parts /= 2;
  if (x.stride(1) != 1) return nativeops::segment_sum<T, I>(dev, x, segment, out, count);
  const bool many = parts == 1 && count * bytes > kSecond;
  if (!many || bytes <= 128) return sum_in_parts(dev, x, segment, out, parts, many);
  while (bytes << (bits + 1) <= kSecond && 16 << bits < count) ++bits;
  const int64_t group_size = int64_t{1} << bits, groups = count / group_size + 1;
  auto memory = dev.workspace<int64_t>(2 * groups + rows);
  const View<int64_t, 2> range = dense(memory.data(), groups, 2);
  const View<int64_t, 1> order = dense(&range(groups, 0), rows);
  put_rows_in_order(dev, segment, count, bits, range, order);
  for_each_item<A>(dev, groups, group_size * n, [=](Team team, int64_t group, View<A, 1> sum) {
    const int64_t first = group * group_size, last = range(group, 1) - 1;
    team.each(0, sum.size(0), [=](int64_t k) { sum(k) = 0; });
    for (int64_t j = range(group, 0); j <= last; ++j) {
      const int64_t i = order(j) >> bits, s = order(j) - (i << bits);
      fetch_once(at(x, order(min2(j + kEarly / bytes + 1, last)) >> bits));
      add_row(&sum(s * n), &x(i, 0), n);
    }
    for (int64_t s = first; s < min2(count, first + group_size); ++s) {
      team.each(0, n, [=, own = &sum((s - first) * n)](int64_t k) { out(s, k) = T(own[k]); });
    }
  });
}

}  // namespace nativeops::tuned
