// SPDX-License-Identifier: Apache-2.0
// Rows so short that a loop over one takes longer than what it computes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/cpu/for_each.h"

namespace nativeops::tuned {

// to[k] += row[k] for k < n, in pieces of 16, 8, 4, 2 and 1 that become whole vectors.
template <class A, class T>
[[gnu::always_inline]] inline void add_row(A* __restrict to, const T* __restrict row, int64_t n) {
  const auto add = [&](auto count) __attribute__((always_inline)) {
    for (int k = 0; k < count; ++k) to[k] += A(row[k]);
    to += count;
    row += count;
  };
  for (int64_t k = 16; k <= n; k += 16) add(std::integral_constant<int, 16>());
  if (n & 8) add(std::integral_constant<int, 8>());
  if (n & 4) add(std::integral_constant<int, 4>());
  if (n & 2) add(std::integral_constant<int, 2>());
  if (n & 1) add(std::integral_constant<int, 1>());
}

// sums[of[i]] += rows[i] for first <= i < end, where there are sums: rows of n numbers, shorter
// than a line and end to end. A line is asked for early, as no processor sees coming what lies
// behind the end of a page; and now and then one far ahead, so that its page is known in time.
template <class A, class T, class I>
[[gnu::always_inline]] inline void add_short_rows(A* __restrict sums, int64_t count,
                                                  const T* __restrict rows, const I* __restrict of,
                                                  int64_t first, int64_t end, int64_t n) {
  constexpr int64_t kLine = 64 / sizeof(T), kAhead = 96 * kLine, kFar = 512 * kLine;
  const int64_t in_line = kLine / n;
  for (int64_t line = 0; first < end; ++line) {
    const T* row = rows + first * n;
    __builtin_prefetch(row + kAhead, 0, 0);
    if (line % 64 == 0) __builtin_prefetch(row + kFar);
    for (const int64_t stop = std::min(first + in_line, end); first < stop; ++first, row += n) {
      const auto place = static_cast<uint64_t>(of[first]);
      if (place < static_cast<uint64_t>(count)) add_row(sums + place * n, row, n);
    }
  }
}

// f(n), where a constant stands for n if it is small: loops over it are then no loops.
template <class F>
void with_constant(int64_t n, F f) {
  if (n == 1) return f(std::integral_constant<int64_t, 1>());
  if (n == 2) return f(std::integral_constant<int64_t, 2>());
  if (n == 3) return f(std::integral_constant<int64_t, 3>());
  if (n == 4) return f(std::integral_constant<int64_t, 4>());
  f(n);
}

// sum[of[i]] += rows[i] for first <= i < end, where there are sums, in the order of i. Rows and
// sums that are read later are fetched early.
template <class A, class T, class I>
void add_rows_by(const View<A, 2>& sum, const In<T, 2>& rows, const In<I, 1>& of, int64_t first,
                 int64_t end) {
  constexpr int64_t kLine = 64, kAhead = 2048, kFar = 6144;  // bytes
  const int64_t n = rows.size(1), count = sum.size(0);
  if (n > 0 && n * int64_t{sizeof(T)} < kLine && rows.stride(0) == n && of.stride(0) == 1) {
    return with_constant(n, [=](auto width) {
      add_short_rows(sum.data, count, rows.data, of.data, first, end, width);
    });
  }
  const int64_t bytes = max2<int64_t>(1, n * int64_t{sizeof(A)});
  const int64_t ahead = kAhead / bytes + 1, far = kFar / bytes + 1;
  const auto is_place = [=](int64_t place) { return place >= 0 && place < count; };
  for (int64_t i = first; i < end; ++i) {
    if (bytes >= kLine) {
      const int64_t later = of(min2(i + ahead, end - 1));
      if (is_place(later)) fetch_early(at(sum, later));
      fetch_once(at(rows, min2(i + far, end - 1)));
    }
    const int64_t place = of(i);
    if (is_place(place)) add_row(&sum(place, 0), &rows(i, 0), n);
  }
}

// sum[of[i] - lowest] += rows[i] for all i for which there is a sum, in their order: the rows of
// some thousand are listed first, without a jump that is foreseen wrongly, so that those that are
// read later are known and fetched early.
template <class A, class T, class I>
void add_rows_of_range(const View<A, 2>& sum, const In<T, 2>& rows, const In<I, 1>& of,
                       int64_t lowest) {
  constexpr int64_t kSome = 4096, kAhead = 128;
  const int64_t all = rows.size(0);
  const auto place = [=](int64_t i) { return int64_t{of(i)} - lowest; };
  with_constant(rows.size(1), [=](auto n) {
    int64_t list[kSome + kAhead], listed = 0;
    for (int64_t i = 0; i < all;) {
      for (const int64_t end = min2(all, i + kSome); i < end; ++i) {
        list[listed] = i;
        listed += static_cast<uint64_t>(place(i)) < static_cast<uint64_t>(sum.size(0));
      }
      const int64_t ready = i < all ? max2<int64_t>(0, listed - kAhead) : listed;
      for (int64_t k = 0; k < ready; ++k) {
        const int64_t row = list[k], last = listed - 1;
        fetch_once(at(rows, list[min2(k + kAhead, last)]));
        fetch_early(at(sum, place(list[min2(k + kAhead / 2, last)])));
        add_row(&sum(place(row), 0), &rows(row, 0), n);
      }
      std::copy(list + ready, list + listed, list);
      listed -= ready;
    }
  });
}

// out[i][j] = Σ_p parts[p][i][j] in the order of p, after what `out` has if it holds a part itself;
// the rows as one where they lie end to end.
template <class A, class T>
void add_parts(Device& dev, View<A, 3> parts, View<T, 2> out, bool adds_to_out = false) {
  if (adds_to_out && parts.size(0) == 0) return;
  const bool is_one = out.stride(0) == out.size(1) && out.stride(1) == 1;
  const View<T, 2> to = is_one ? dense(out.data, 1, out.count()) : out;
  const View<A, 3> from = is_one ? dense(parts.data, parts.size(0), 1, out.count()) : parts;
  with_constant(parts.size(0), [=, &dev](auto count) {
    for_each(dev, to, [=](int64_t i, int64_t j) {
      A sum = adds_to_out ? A(to(i, j)) : A(0);
      for (int64_t p = 0; p < count; ++p) sum += from(p, i, j);
      to(i, j) = T(sum);
    });
  });
}

}  // namespace nativeops::tuned
