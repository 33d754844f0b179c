// SPDX-License-Identifier: Apache-2.0
// Sums and the like over a row, in an order that no instruction set changes.
#pragma once
#include <cstdint>

namespace nativeops::tuned {

// fold(fold(part, f(0)), f(1)) .. in as many parts as fill some vectors, which are folded in the
// end: their number is the same for every instruction set, and so the result.
template <class A, class F, class Fold>
[[gnu::flatten]] inline A fold_row(int64_t n, A init, F f, Fold fold) {
  constexpr int kParts = 64;
  alignas(64) A part[kParts];
  for (A& p : part) p = init;
  int64_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (int p = 0; p < kParts; ++p) part[p] = fold(part[p], f(i + p));
  }
  for (; i + 16 <= n; i += 16) {
    for (int p = 0; p < 16; ++p) part[p] = fold(part[p], f(i + p));
  }
  for (int p = 0; i + p < n; ++p) part[p] = fold(part[p], f(i + p));
#pragma GCC unroll 8
  for (int step = kParts / 2; step > 0; step /= 2) {
    for (int p = 0; p < step; ++p) part[p] = fold(part[p], part[p + step]);
  }
  return part[0];
}

}  // namespace nativeops::tuned
