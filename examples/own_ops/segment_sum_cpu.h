// SPDX-License-Identifier: Apache-2.0
// Sums of rows by segment on the CPU: to read memory in order is worth more there than many
// threads, or than to have no memory for sums in between.
#pragma once
#include "nativeops/devices/kernel.h"
#include "segment_sum.h"

namespace nativeops::tuned {

// Into the first cache (3) or the second (2), where more may be under way at a time.
template <int kNear, class T>
inline void fetch(const T* from, int64_t count) {
  for (int64_t k = 0; k < count; k += 64 / sizeof(T)) __builtin_prefetch(from + k, 0, kNear);
}

// out[s] = Σ_part Σ x[i] over all i of a part with segment[i] = s, both in order: parts of the
// rows, as many as their sums are worth, whatever the number of threads. Where segments have too
// few rows for that, strips of columns instead; long rows are read fast in any order.
template <class T, class I>
void segment_sum(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t count) {
  using A = Accum<T>;
  constexpr int64_t kMost = 8, kRowsOfEach = 16;  // of a segment, in a part
  constexpr int64_t kStrip = 32, kLong = 128;     // columns
  constexpr int64_t kAhead = 16, kFar = 48;       // rows whose sums, and which, are fetched early
  const int64_t rows = x.size(0), n = x.size(1);
  const int64_t parts = max2<int64_t>(1, min2(kMost, rows / (kRowsOfEach * (count + 1))));
  if (parts == 1 && n > kLong) return nativeops::segment_sum<T, I>(dev, x, segment, out, count);
  const int64_t width = parts > 1 ? max2<int64_t>(1, n) : kStrip, strips = (n + width - 1) / width;
  const bool direct = std::is_same_v<T, A> && parts == 1 && out.stride(1) == 1;
  auto memory = dev.workspace<A>(direct ? 0 : parts * strips * count * width);
  const auto sums = [=, data = memory.data()](int64_t part, int64_t strip) -> View<A, 2> {
    if constexpr (std::is_same_v<T, A>) {
      if (direct) return {&out(0, strip * width), {count, width}, {out.stride(0), 1}};
    }
    return dense(data + (part * strips + strip) * count * width, count, width);
  };
  for_each_item(dev, parts * strips, [=](Team team, int64_t item) {
    const int64_t part = item / strips, first = item % strips * width;
    const int64_t own = min2(width, n - first), end = (part + 1) * rows / parts;
    const View<A, 2> sum = sums(part, item % strips);
    for (int64_t s = 0; s < count; ++s) {
      team.each(0, own, [row = &sum(s, 0)](int64_t k) { row[k] = 0; });
    }
    const auto exists = [=](int64_t s) { return s >= 0 && s < count; };
    for (int64_t i = part * rows / parts; i < end; ++i) {
      const int64_t s = segment(i), later = segment(min2(i + kAhead, end - 1));
      if (x.stride(1) == 1) fetch<2>(&x(min2(i + kFar, end - 1), first), own);
      if (exists(later)) fetch<3>(&sum(later, 0), own);
      if (!exists(s)) continue;
      A* const to = &sum(s, 0);
      const T* const row = &x(i, first);
      if (x.stride(1) == 1) {
        team.each(0, own, [=](int64_t k) { to[k] += A(row[k]); });
      } else {
        team.each(0, own, [=](int64_t k) { to[k] += A(row[k * x.stride(1)]); });
      }
    }
  });
  if (direct) return;
  for_each_item(dev, count, [=](Team team, int64_t s) {
    for (int64_t strip = 0; strip < strips; ++strip) {
      const int64_t first = strip * width, own = min2(width, n - first);
      A* const sum = &sums(0, strip)(s, 0);
      for (int64_t part = 1; part < parts; ++part) {
        team.each(0, own, [=, more = &sums(part, strip)(s, 0)](int64_t k) { sum[k] += more[k]; });
      }
      team.each(0, own, [=](int64_t k) { out(s, first + k) = T(sum[k]); });
    }
  });
}

}  // namespace nativeops::tuned
