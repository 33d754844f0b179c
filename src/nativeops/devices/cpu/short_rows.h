// SPDX-License-Identifier: Apache-2.0
// Rows so short that a loop over one takes longer than what it computes.
#pragma once
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

// f(n), where a constant stands for n if it is small: loops over it are then no loops.
template <class F>
void with_constant(int64_t n, F f) {
  if (n == 1) return f(std::integral_constant<int64_t, 1>());
  if (n == 2) return f(std::integral_constant<int64_t, 2>());
  if (n == 3) return f(std::integral_constant<int64_t, 3>());
  if (n == 4) return f(std::integral_constant<int64_t, 4>());
  f(n);
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
