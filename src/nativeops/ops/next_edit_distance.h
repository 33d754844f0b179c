// SPDX-License-Identifier: Apache-2.0
// The next row of an edit distance table. Declared in next_edit_distance.py.
#pragma once
#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"

namespace nativeops {
namespace edits {

inline void check_b_len(In<int32_t, 1> b_len, int64_t most) {
  check_range("b_len", b_len, 0, most, "the size of `b` along `tb`");
}

}  // namespace edits

// out[0] = a_n + 1      out[j] = min(last[j] + 1, out[j-1] + 1, last[j-1] + (a ≠ b[j]))
// The last but one chains all entries, and that takes one thread to a sequence.
template <class I>
void next_edit_distance_row(Device& dev, In<int32_t, 2> last_row, In<I, 1> a, In<int32_t, 1> a_n,
                            In<int32_t, 1> a_ended, In<I, 2> b, In<int32_t, 1> b_len,
                            Out<int32_t, 2> out) {
  edits::check_b_len(b_len, b.size(1));
  const int64_t width = b.size(1) + 1;
  for_each(
      dev, a_n,
      [=] KERNEL(int64_t item) {
        const int64_t m = length_of(b_len, item, width - 1);
        const bool ended = a_ended(item) != 0;
        const I label = a(item);
        int32_t entry = ended ? last_row(item, 0) : a_n(item) + 1;
        int32_t left = last_row(item, 0);
        out(item, 0) = entry;
        for (int64_t j = 1; j <= m; ++j) {
          const int32_t above = last_row(item, j), across = left + (label != b(item, j - 1));
          entry = ended ? above : min2(min2(above, entry) + 1, across);
          left = above;
          out(item, j) = entry;
        }
        for (int64_t j = m + 1; j < width; ++j) out(item, j) = entry;
      },
      width);
}

// The entry j of the next row adds one for each step from there on to its end, unless the minimum
// of the row is wanted: rest(j) = m - j or 0. With that, for a candidate v,
//   out[v] = min(a_n + 1 + rest(0), last[j] + 1 + rest(j), last[j-1] + (v ≠ b[j]) + rest(j)),
// which is `missed`, the value where v is no b[j], or one less: where v is one of those `better`.
template <class I>
void next_edit_distance_reduce(Device& dev, In<int32_t, 2> last_row, In<I, 2> a, In<int32_t, 1> a_n,
                               In<int32_t, 1> a_ended, In<I, 2> b, In<int32_t, 1> b_len,
                               Out<int32_t, 2> out, bool optimal_completion, int64_t a_blank_idx) {
  edits::check_b_len(b_len, b.size(1));
  const int64_t tb = b.size(1), n = a.size(1);
  for_each_item<I>(dev, b.size(0), tb + 1, [=] KERNEL(Team team, int64_t item, View<I, 1> better) {
    const int64_t m = length_of(b_len, item, tb);
    const bool ended = a_ended(item) != 0;
    const auto rest = [=](int64_t j) { return optimal_completion ? 0 : m - j; };
    const auto last = [=](int64_t j) { return static_cast<int64_t>(last_row(item, j)); };
    const int64_t least = team.min(0, m + 1, last);
    const int64_t still = optimal_completion ? least : last(m);
    const int64_t missed = team.min(0, m + 1, [=](int64_t j) {
      if (j == 0) return static_cast<int64_t>(a_n(item)) + 1 + rest(0);
      return min2(last(j), last(j - 1)) + 1 + rest(j);
    });
    if (team.rank() == 0) {
      int64_t many = 0;
      for (int64_t j = 1; j <= m; ++j) {
        if (last(j - 1) + rest(j) < missed) better(++many) = b(item, j - 1);
      }
      better(0) = static_cast<I>(many);
    }
    team.sync();
    const int64_t many = static_cast<int64_t>(better(0));
    team.each(0, n, [=](int64_t v) {
      const I label = a(item, v);
      const bool blank = a_blank_idx >= 0 && static_cast<int64_t>(label) == a_blank_idx;
      bool hit = false;
      for (int64_t k = 1; k <= many; ++k) hit |= better(k) == label;
      out(item, v) = static_cast<int32_t>(ended || blank ? still : missed - hit);
    });
  });
}

}  // namespace nativeops
