// SPDX-License-Identifier: Apache-2.0
// Edit distance of pairs of sequences, by anti-diagonals. Declared in edit_distance.py.
#pragma once
#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"

namespace nativeops {
namespace edits {

constexpr int32_t kFar = 1 << 30;  // more than any distance

// Two sets of sequences as an op gets them.
template <class I>
struct Sets {
  In<I, 2> a, b;
  In<int32_t, 1> a_len, b_len;  // optional

  HOST_DEVICE int64_t n(int64_t item) const { return length_of(a_len, item, a.size(1)); }
  HOST_DEVICE int64_t m(int64_t item) const { return length_of(b_len, item, b.size(1)); }
  void check() const {
    check_length("a", a, "a_len", a_len, "the size of `a` along `ta`");
    check_length("b", b, "b_len", b_len, "the size of `b` along `tb`");
  }

 private:
  static void check_length(const char* name, const In<I, 2>& labels, const char* length_name,
                           const In<int32_t, 1>& length, const char* bound) {
    const int64_t most = kFar - 1, size = labels.size(1);
    if (length) return check_range(length_name, length, 0, min2(size, most), bound);
    if (size <= most || labels.size(0) == 0) return;
    throw std::runtime_error("`" + std::string(name) + "` has " + std::to_string(size) +
                             " labels along `t" + name + "`, but must have at most " +
                             std::to_string(most) + ": distances are numbers of 32 bits.");
  }
};

// One pair of sequences: the first n labels of a, the first m of b.
template <class I>
struct Pair {
  In<I, 1> a, b;
  int64_t n, m;
};
template <class I>
HOST_DEVICE Pair<I> pair_of(const Sets<I>& of, int64_t i, int64_t j) {
  return {at(of.a, i), at(of.b, j), of.n(i), of.m(j)};
}
template <class I>
HOST_DEVICE Pair<I> swapped(const Pair<I>& pair) {
  return {pair.b, pair.a, pair.m, pair.n};
}

// The cells i of the anti-diagonal s that lie in the table, and not further than `band` from the
// main diagonal. No way of `band` edits leaves that (Ukkonen 1985).
struct Span {
  int64_t low, high;  // both are part of it
  HOST_DEVICE Span(int64_t s, int64_t n, int64_t m, int64_t band)
      : low(max2(max2<int64_t>(0, s - m), (s - band + 1) / 2)),
        high(min2(min2(n, s), (s + band) / 2)) {}
};

// D[i, j] = min(D[i-1, j] + 1, D[i, j-1] + 1, D[i-1, j-1] + (a[i] ≠ b[j])) on the anti-diagonal
// s = i + j, whose cells are independent, from those of s - 1 and s - 2; visit(i, j, D[i, j]).
template <class I, class F>
KERNEL void diagonal(const Team& team, const Pair<I>& pair, int64_t s, int64_t band,
                     View<int32_t, 1> before, View<int32_t, 1> last, View<int32_t, 1> now,
                     F visit) {
  const Span span(s, pair.n, pair.m, band);
  const In<I, 1> a = pair.a, b = pair.b;
  const int64_t n = pair.n;
  const int32_t edge = static_cast<int32_t>(s);
  team.each(max2<int64_t>(span.low, 1), min2(span.high, s - 1) + 1, [=](int64_t i) {
    const int32_t across = before(i - 1) + (a(i - 1) != b(s - i - 1));
    const int32_t d = min2(across, min2(last(i - 1), last(i)) + 1);
    now(i) = d;
    visit(i, s - i, d);
  });
  team.each(0, s > 0 ? 2 : 1, [=](int64_t side) {
    const int64_t border = side ? s : 0, outside = side ? span.high + 1 : span.low - 1;
    if (outside >= 0 && outside <= n) now(outside) = kFar;
    if (border < span.low || border > span.high) return;
    now(border) = edge;
    visit(border, s - border, edge);
  });
  team.sync();
}

// All anti-diagonals, of which three rows of n + 1 cells are kept.
template <class I, class F>
KERNEL void diagonals(const Team& team, const Pair<I>& pair, int64_t band, View<int32_t, 1> cells,
                      F visit) {
  const int64_t width = pair.n + 1;
  View<int32_t, 1> before = dense(&cells(0), width), last = dense(&cells(width), width);
  View<int32_t, 1> now = dense(&cells(2 * width), width);
  for (int64_t s = 0; s <= pair.n + pair.m; ++s) {
    diagonal(team, pair, s, band, before, last, now, visit);
    const View<int32_t, 1> free = before;
    before = last, last = now, now = free;
  }
}

// The distance, at most limit + 1 if there is a limit.
template <class I>
KERNEL int32_t distance(const Team& team, const Pair<I>& pair, int64_t limit,
                        View<int32_t, 1> cells) {
  const int64_t n = pair.n, m = pair.m, apart = n < m ? m - n : n - m;
  if (limit >= 0 && apart > limit) return static_cast<int32_t>(limit + 1);
  const int64_t width = n + 1, band = limit < 0 ? n + m : limit;
  diagonals(team, pair, band, cells, [](int64_t, int64_t, int32_t) {});
  const int32_t found = cells((n + m + 2) % 3 * width + n);
  return limit < 0 ? found : min2(found, static_cast<int32_t>(limit + 1));
}

// put(i, j, D) for pairs of sequences: i = j if `others` is 0, else all j < others for each i.
template <class I, class F>
void for_each_distance(Device& dev, const Sets<I>& of, int64_t others, int64_t limit, F put) {
  of.check();
  const bool swap = of.a.size(1) > of.b.size(1);  // the cells are counted along the shorter side
  const int64_t cells = 3 * (min2(of.a.size(1), of.b.size(1)) + 1);
  const int64_t items = of.a.size(0) * max2<int64_t>(others, 1);
  for_each_item<int32_t>(
      dev, items, cells, [=] KERNEL(Team team, int64_t item, View<int32_t, 1> cells) {
        const int64_t i = others ? item / others : item;
        const int64_t j = others ? item % others : item;
        const Pair<I> pair = pair_of(of, i, j);
        const int32_t d = distance(team, swap ? swapped(pair) : pair, limit, cells);
        if (team.rank() == 0) put(i, j, d);
      });
}

// D per label of b; 0 of two empty sequences.
HOST_DEVICE inline float per_label(int32_t d, int64_t m) {
  if (m == 0 && d > 0) return Extreme<float>::highest;
  return static_cast<float>(static_cast<double>(d) / static_cast<double>(max2<int64_t>(m, 1)));
}

}  // namespace edits

template <class I>
void edit_distance(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len, In<int32_t, 1> b_len,
                   Out<int32_t, 1> out, int64_t max_distance) {
  const edits::Sets<I> of{a, b, a_len, b_len};
  edits::for_each_distance(dev, of, 0, max_distance,
                           [=] KERNEL(int64_t i, int64_t, int32_t d) { out(i) = d; });
}

template <class I>
void normalized_edit_distance(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len,
                              In<int32_t, 1> b_len, Out<float, 1> out, int64_t max_distance) {
  const edits::Sets<I> of{a, b, a_len, b_len};
  edits::for_each_distance(dev, of, 0, max_distance, [=] KERNEL(int64_t i, int64_t, int32_t d) {
    out(i) = edits::per_label(d, of.m(i));
  });
}

template <class I>
void pairwise_edit_distance(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len,
                            In<int32_t, 1> b_len, Out<int32_t, 2> out, int64_t max_distance) {
  const edits::Sets<I> of{a, b, a_len, b_len};
  if (b.size(0) == 0) return of.check();
  edits::for_each_distance(dev, of, b.size(0), max_distance,
                           [=] KERNEL(int64_t i, int64_t j, int32_t d) { out(i, j) = d; });
}

}  // namespace nativeops
