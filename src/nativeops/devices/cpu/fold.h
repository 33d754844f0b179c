// SPDX-License-Identifier: Apache-2.0
// Sums and the like over a row, in an order that no instruction set changes.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/lanes.h"

namespace nativeops::tuned {

// f(i) .. f(i + n - 1)
template <class A, int n, class F>
NATIVEOPS_INLINE Lanes<A, n> lanes_of(int64_t i, const F& f) {
  alignas(64) A value[n];
  for (int p = 0; p < n; ++p) value[p] = f(i + p);
  return Lanes<A, n>::load(value);
}

// fold(fold(init, f(0)), f(1)) .. in as many parts as fill some vectors, which are folded in the
// end: their number is the same for every instruction set, and so the result. `fold` takes numbers
// and vectors.
template <class A, class F, class Fold>
[[gnu::flatten]] inline A fold_row(int64_t n, A init, F f, Fold fold) {
  constexpr int kFew = 16;
  using Many = Lanes<A, kFew>;
  Many part[4] = {Many::all(init), Many::all(init), Many::all(init), Many::all(init)};
  int64_t i = 0;
  for (; i + 4 * kFew <= n; i += 4 * kFew) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      part[q] = part[q].folded(lanes_of<A, kFew>(i + q * kFew, f), fold);
    }
  }
  Many all = part[0].folded(part[1], fold).folded(part[2].folded(part[3], fold), fold);
  for (; i + kFew <= n; i += kFew) all = all.folded(lanes_of<A, kFew>(i, f), fold);
  auto half = all.halved(fold);
  if (i + kFew / 2 <= n) {
    half = half.folded(lanes_of<A, kFew / 2>(i, f), fold);
    i += kFew / 2;
  }
  A found = fold_lanes(half, fold);
  for (; i < n; ++i) found = fold(found, f(i));
  return found;
}

}  // namespace nativeops::tuned
