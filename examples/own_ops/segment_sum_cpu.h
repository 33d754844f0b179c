// SPDX-License-Identifier: Apache-2.0
// Sums of rows by segment on the CPU, for as many segments at a time as the caches hold the sums
// of: each row is read once, and in their order.
#pragma once
#include "segment_sum.h"

namespace nativeops::tuned {

// out[s] = Σ_part Σ x[i] over all i of a part with segment[i] = s, both in order
template <class T, class I>
void sum_in_parts(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t parts) {
  using A = Accum<T>;
  constexpr int64_t kAhead = 16, kFar = 48;  // rows whose sums, and which, are fetched early
  const int64_t n = x.size(1), count = out.size(0);
  auto memory = dev.workspace<A>(parts * count * n);
  const View<A, 3> sums = dense(memory.data(), parts, count, n);
  for_each_item(dev, parts, [=](Team team, int64_t part) {
    const View<A, 2> sum = at(sums, part);
    const int64_t begin = part * x.size(0) / parts, end = (part + 1) * x.size(0) / parts;
    const auto exists = [=](int64_t s) { return s >= 0 && s < count; };
    std::fill_n(sum.data, sum.count(), A(0));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t s = segment(i), later = segment(min2(i + kAhead, end - 1));
      if (exists(later)) fetch_early(at(sum, later));
      fetch_early(at(x, min2(i + kFar, end - 1)));
      if (!exists(s)) continue;
      team.each(0, n, [to = &sum(s, 0), row = &x(i, 0)](int64_t k) { to[k] += A(row[k]); });
    }
  });
  for_each_item(dev, count, [=](Team team, int64_t s) {
    A* const sum = &sums(0, s, 0);
    for (int64_t part = 1; part < parts; ++part) {
      team.each(0, n, [=, more = &sums(part, s, 0)](int64_t k) { sum[k] += more[k]; });
    }
    team.each(0, n, [=](int64_t k) { out(s, k) = T(sum[k]); });
  });
}

// The same in parts where segments have rows enough for each of them and all sums fit into the
// third cache; otherwise rows are put in order first, for 2^bits segments whose sums fit into the
// second.
template <class T, class I>
void segment_sum(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t count) {
  using A = Accum<T>;
  constexpr int64_t kShort = 64, kThird = 12 << 20, kSecond = 256 << 10, kEarly = 8 << 10;
  const int64_t rows = x.size(0), n = x.size(1), bytes = max2<int64_t>(1, n * sizeof(A));
  const int64_t least = (bytes <= kShort ? 2 : 16) * (count + 1);  // rows of a part
  int64_t parts = 8, bits = 0;
  while (parts > 1 && (rows < parts * least || parts * count * bytes > kThird)) parts /= 2;
  if (x.stride(1) != 1) return nativeops::segment_sum<T, I>(dev, x, segment, out, count);
  if (parts > 1) return sum_in_parts(dev, x, segment, out, parts);
  while (bytes << (bits + 1) <= kSecond && 16 << bits < count) ++bits;
  const int64_t group_size = int64_t{1} << bits, groups = count / group_size + 1;
  auto memory = dev.workspace<int64_t>(2 * groups + rows);
  const View<int64_t, 2> range = dense(memory.data(), groups, 2);
  const View<int64_t, 1> order = dense(&range(groups, 0), rows);
  put_in_order(dev, segment, count, bits, range, order);
  for_each_item<A>(dev, groups, group_size * n, [=](Team team, int64_t group, View<A, 1> sum) {
    const int64_t first = group * group_size, last = range(group, 1) - 1;
    team.each(0, sum.size(0), [=](int64_t k) { sum(k) = 0; });
    for (int64_t j = range(group, 0); j <= last; ++j) {
      const int64_t i = order(j) >> bits, s = order(j) - (i << bits);
      fetch_early(at(x, order(min2(j + kEarly / bytes + 1, last)) >> bits));
      team.each(0, n, [to = &sum(s * n), row = &x(i, 0)](int64_t k) { to[k] += A(row[k]); });
    }
    for (int64_t s = first; s < min2(count, first + group_size); ++s) {
      team.each(0, n, [=, own = &sum((s - first) * n)](int64_t k) { out(s, k) = T(own[k]); });
    }
  });
}

}  // namespace nativeops::tuned
