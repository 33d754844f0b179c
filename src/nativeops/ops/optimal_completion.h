// SPDX-License-Identifier: Apache-2.0
// Optimal completion of prefixes. Declared in optimal_completion.py.
#pragma once
#include "nativeops/ops/edit_distance.h"

namespace nativeops {
namespace edits {

// row(j) = D[n, j] for 0 ≤ j ≤ m, and all of a team know it.
template <class I>
KERNEL void last_row(const Team& team, const Pair<I>& pair, View<int32_t, 1> cells,
                     View<int32_t, 1> row) {
  const int64_t n = pair.n;
  diagonals(team, pair, pair.n + pair.m, cells, [=](int64_t i, int64_t j, int32_t d) {
    if (i == n) row(j) = d;
  });
}

// f(team, item, pair, row) with the last row of each pair's table.
template <class I, class F>
void for_each_last_row(Device& dev, const Sets<I>& of, F f) {
  of.check();
  const int64_t width = of.a.size(1) + 1, columns = of.b.size(1) + 1;
  for_each_item<int32_t>(dev, of.a.size(0), 3 * width + columns,
                         [=] KERNEL(Team team, int64_t item, View<int32_t, 1> cells) {
                           const Pair<I> pair = pair_of(of, item, item);
                           const View<int32_t, 1> row = dense(&cells(3 * width), columns);
                           last_row(team, pair, cells, row);
                           f(team, item, pair, row);
                         });
}

template <class I>
void check_labels(const Sets<I>& of, int64_t n_labels, int64_t end) {
  if (end >= n_labels) refuse("end", end, -1, n_labels - 1, "the labels that `n_labels` counts");
  nativeops::check_labels("b", of.b, of.b_len, kNoBlank, n_labels - 1,
                          "the labels that `n_labels` counts");
}

}  // namespace edits

// out = min D[n, j] over 0 ≤ j ≤ m
template <class I>
void optimal_completion_edit_distance(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len,
                                      In<int32_t, 1> b_len, Out<int32_t, 1> out) {
  using edits::Pair;
  edits::for_each_last_row(
      dev, edits::Sets<I>{a, b, a_len, b_len},
      [=] KERNEL(Team team, int64_t item, const Pair<I>& pair, View<int32_t, 1> row) {
        const int32_t best = team.min(0, pair.m + 1, [=](int64_t j) { return row(j); });
        if (team.rank() == 0) out(item) = best;
      });
}

// out[v] = min(n + 1, D[n, m] + 1, min D[n, j-1] + (v ≠ b[j]) over 1 ≤ j ≤ m)
template <class I>
void optimal_completion_edit_distance_per_successor(Device& dev, In<I, 2> a, In<I, 2> b,
                                                    In<I, 1> successors, In<int32_t, 1> a_len,
                                                    In<int32_t, 1> b_len, Out<int32_t, 2> out) {
  using edits::Pair;
  edits::for_each_last_row(
      dev, edits::Sets<I>{a, b, a_len, b_len},
      [=] KERNEL(Team team, int64_t item, const Pair<I>& pair, View<int32_t, 1> row) {
        const In<I, 1> b = pair.b;
        const int64_t m = pair.m;
        team.each(0, successors.size(0), [=](int64_t v) {
          int32_t best = min2(row(0), row(m)) + 1;
          for (int64_t j = 1; j <= m; ++j) {
            best = min2(best, row(j - 1) + (successors(v) != b(j - 1)));
          }
          out(item, v) = best;
        });
      });
}

// out[i, b[j+1]] = 1 where D[i, j] = min D[i, :], the end instead of b[m+1]. The table is computed
// twice: first for the minima of its rows.
template <class I>
void ocd_targets(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len, In<int32_t, 1> b_len,
                 Out<bool, 3> out, int64_t n_labels, int64_t end) {
  const edits::Sets<I> of{a, b, a_len, b_len};
  of.check();
  edits::check_labels(of, n_labels, end);
  for_each(dev, out, [=] KERNEL(int64_t item, int64_t i, int64_t v) { out(item, i, v) = false; });
  const int64_t width = a.size(1) + 1;
  for_each_item<int32_t>(
      dev, a.size(0), 4 * width, [=] KERNEL(Team team, int64_t item, View<int32_t, 1> cells) {
        const edits::Pair<I> pair = edits::pair_of(of, item, item);
        const int64_t m = pair.m, band = pair.n + pair.m;
        const View<int32_t, 1> least = dense(&cells(3 * width), width);
        const In<I, 1> b = pair.b;
        team.each(0, pair.n + 1, [=](int64_t i) { least(i) = edits::kFar; });
        team.sync();
        edits::diagonals(team, pair, band, cells,
                         [=](int64_t i, int64_t, int32_t d) { least(i) = min2(least(i), d); });
        edits::diagonals(team, pair, band, cells, [=](int64_t i, int64_t j, int32_t d) {
          const int64_t label = j == m ? end : static_cast<int64_t>(b(j));
          if (d == least(i) && label >= 0 && label < n_labels) out(item, i, label) = true;
        });
      });
}

}  // namespace nativeops
