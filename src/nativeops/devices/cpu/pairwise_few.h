// SPDX-License-Identifier: Apache-2.0
// out[b,i,j] = fold over k of x[b,i,k] and y[b,j,k] where one of both has few rows, and they are
// long: lanes along k, so that no row is turned first. A pair after another reads its rows as they
// lie.
#pragma once
#include "nativeops/devices/cpu/pairwise.h"

namespace nativeops::tuned {

// Four sums side by side, which are joined in the end.
template <class Fold, class T>
Accum<T> fold_along(const Fold& fold, const T* x, const T* y, int64_t depth) {
  using A = Accum<T>;
  constexpr int n = simd::kLanes<A>, kParts = 4;
  simd::Vec<A> part[kParts];
  for (auto& sum : part) sum = simd::zero<A>();
  int64_t k = 0;
  for (; k + kParts * n <= depth; k += kParts * n) {
    simd::unroll<kParts>([&](auto p) __attribute__((always_inline)) {
      const int64_t at = k + p * n;
      part[p] = fold.along(part[p], simd::load(x + at, n), simd::load(y + at, n));
    });
  }
  for (; k < depth; k += n) {
    part[0] = fold.along(part[0], simd::load(x + k, depth - k), simd::load(y + k, depth - k));
  }
  return fold.across(fold.join(fold.join(part[0], part[1]), fold.join(part[2], part[3])));
}

// Computes `out` if that pays. Else false. `fold_of(b, i, j)` is the formula of the block that
// starts there, as for `pairwise_fold`.
template <class FoldOf, class T>
bool pairwise_few(Device& dev, FoldOf fold_of, In<T, 3> x, In<T, 3> y, Out<T, 3> out) {
  using A = Accum<T>;
  constexpr int64_t kFew = 2, kRowsAtOnce = 16, kLong = 4 * simd::kLanes<A>;
  const int64_t n = out.size(1), m = out.size(2), depth = x.size(2);
  if (std::min(n, m) > kFew || depth < kLong || x.stride(2) != 1 || y.stride(2) != 1) return false;
  const bool turned = n > m;
  const int64_t rows = std::max(n, m), few = std::min(n, m), parts = ceil_div(rows, kRowsAtOnce);
  const int64_t steps = out.count() * ceil_div(depth, simd::kLanes<A>);
  parallel_if_large(dev, out.size(0) * parts, steps, [&](int64_t task) {
    const int64_t b = task / parts, first = task % parts * kRowsAtOnce;
    const auto fold = fold_of(b, 0, 0);
    for (int64_t row = first; row < std::min(rows, first + kRowsAtOnce); ++row) {
      for (int64_t other = 0; other < few; ++other) {
        const int64_t i = turned ? row : other, j = turned ? other : row;
        const A sum =
            fold_along<std::decay_t<decltype(fold)>, T>(fold, &x(b, i, 0), &y(b, j, 0), depth);
        alignas(64) A lane[simd::kLanes<A>];
        simd::store(lane, fold.finish(simd::broadcast(sum), i, j, 1));
        out(b, i, j) = T(lane[0]);
      }
    }
  });
  return true;
}

// The same by whichever way pays.
template <class FoldOf, class T>
void pairwise_few_or_many(Device& dev, FoldOf fold_of, In<T, 3> x, In<T, 3> y, Out<T, 3> out) {
  if (!pairwise_few(dev, fold_of, x, y, out)) pairwise_fold(dev, fold_of, x, y, out);
}

}  // namespace nativeops::tuned
