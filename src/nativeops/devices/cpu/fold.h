// SPDX-License-Identifier: Apache-2.0
// Sums and the like over a row, in an order that no instruction set changes.
#pragma once
#include <cstdint>

#include "nativeops/devices/elementary.h"

namespace nativeops::tuned {

// The first `kTo` of `kParts` parts, with the others folded into them.
template <int kParts, int kTo, class A, class Fold>
NATIVEOPS_INLINE void fold_parts(A* part, Fold fold) {
#pragma GCC unroll 8
  for (int step = kParts / 2; step >= kTo; step /= 2) {
    for (int p = 0; p < step; ++p) part[p] = fold(part[p], part[p + step]);
  }
}

// fold(fold(part, f(0)), f(1)) .. in as many parts as fill some vectors, which are folded in the
// end: their number is the same for every instruction set, and so the result.
template <class A, class F, class Fold>
[[gnu::flatten]] inline A fold_row(int64_t n, A init, F f, Fold fold) {
  constexpr int kParts = 64, kFew = 16;
  alignas(64) A part[kParts];
  for (int p = 0; p < kFew; ++p) part[p] = init;
  int64_t i = 0;
  if (n >= kParts) {
    for (int p = kFew; p < kParts; ++p) part[p] = init;
    for (; i + kParts <= n; i += kParts) {
      for (int p = 0; p < kParts; ++p) part[p] = fold(part[p], f(i + p));
    }
    fold_parts<kParts, kFew>(part, fold);
  }
  for (; i + kFew <= n; i += kFew) {
    for (int p = 0; p < kFew; ++p) part[p] = fold(part[p], f(i + p));
  }
  for (int p = 0; i + p < n; ++p) part[p] = fold(part[p], f(i + p));
  fold_parts<kFew, 1>(part, fold);
  return part[0];
}

}  // namespace nativeops::tuned
