// SPDX-License-Identifier: Apache-2.0
// Sums of short rows by segment on the CPU: to read memory in order is worth more there than many
// threads.
#pragma once
#include "nativeops/devices/kernel.h"
#include "segment_sum.h"

namespace nativeops::tuned {

// out[s] = Σ x[i] over all i with segment[i] = s, in the order of i: a team for each 32 columns,
// which goes through all rows. Long rows are read fast in any order.
template <class T, class I>
void segment_sum(Device& dev, In<T, 2> x, In<I, 1> segment, Out<T, 2> out, int64_t count) {
  using A = Accum<T>;
  constexpr int64_t kWidth = 32, kLong = 128;
  const int64_t rows = x.size(0), n = x.size(1), strips = (n + kWidth - 1) / kWidth;
  if (n > kLong) return nativeops::segment_sum<T, I>(dev, x, segment, out, count);
  for_each_item<A>(dev, strips, count * kWidth, [=](Team team, int64_t strip, View<A, 1> sums) {
    const int64_t first = strip * kWidth, own = min2(kWidth, n - first);
    team.each(0, count * kWidth, [=](int64_t i) { sums(i) = 0; });
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t s = segment(i);
      if (s < 0 || s >= count) continue;
      const View<A, 1> sum = dense(&sums(s * kWidth), own);
      const In<T, 1> row{&x(i, first), {own}, {x.stride(1)}};
      team.each(0, own, [=](int64_t k) { sum(k) += A(row(k)); });
    }
    for (int64_t s = 0; s < count; ++s) {
      team.each(0, own, [=](int64_t k) { out(s, first + k) = T(sums(s * kWidth + k)); });
    }
  });
}

}  // namespace nativeops::tuned
