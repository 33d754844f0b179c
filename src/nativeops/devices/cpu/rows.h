// SPDX-License-Identifier: Apache-2.0
// Rows of numbers that lie one beside the other: fetched early, and summed up.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nativeops/devices/cpu/stream.h"
#include "nativeops/devices/kernel.h"

namespace nativeops::tuned {

// Rows that lie far from each other are fetched early, for reading or for writing. Inlined by
// force, as in view.h.
template <int kWrite, class T>
[[gnu::always_inline]] inline void expect_row(const T* row, int64_t count) {
  const int64_t bytes = std::min<int64_t>(count * static_cast<int64_t>(sizeof(T)), 1024);
  for (int64_t i = 0; i < bytes; i += kLine)
    __builtin_prefetch(reinterpret_cast<const char*>(row) + i, kWrite);
}

// place[j] = Σ_k rows[k][j] over C rows, in their order, or its mean.
template <bool kMean, int C, class T>
void fold_few(const T* const* rows, int64_t first, int64_t n, T* __restrict place) {
  using A = Accum<T>;
  const T* row[C];
  for (int k = 0; k < C; ++k) row[k] = rows[k] + first;
  for (int64_t j = 0; j < n; ++j) {
    A sum = A(row[0][j]);
    for (int k = 1; k < C; ++k) sum += A(row[k][j]);
    place[j] = T(kMean ? sum / A(C) : sum);
  }
}

// The same of c rows.
template <bool kMean, class T>
void fold_rows(const T* const* rows, int64_t c, int64_t first, int64_t n, T* __restrict place) {
  using A = Accum<T>;
  if (c == 0) return void(std::fill_n(place, n, T(0.0f)));
  if (c == 1) return copy_row(place, rows[0] + first, n);
  if (c == 2) return fold_few<kMean, 2>(rows, first, n, place);
  if (c == 3) return fold_few<kMean, 3>(rows, first, n, place);
  if (c == 4) return fold_few<kMean, 4>(rows, first, n, place);
  constexpr int64_t kBlock = 256;
  alignas(64) A sum[kBlock];
  const A divisor = kMean ? A(c) : A(1);
  for (int64_t j0 = 0; j0 < n; j0 += kBlock) {
    const int64_t m = std::min(kBlock, n - j0), at = first + j0;
    for (int64_t j = 0; j < m; ++j) sum[j] = A(rows[0][at + j]);
    int64_t k = 1;
    for (; k + 2 < c; k += 3) {
      const T *one = rows[k] + at, *two = rows[k + 1] + at, *three = rows[k + 2] + at;
      for (int64_t j = 0; j < m; ++j) sum[j] = ((sum[j] + A(one[j])) + A(two[j])) + A(three[j]);
    }
    for (; k < c; ++k) {
      for (int64_t j = 0; j < m; ++j) sum[j] += A(rows[k][at + j]);
    }
    for (int64_t j = 0; j < m; ++j) place[j0 + j] = T(sum[j] / divisor);
  }
}

}  // namespace nativeops::tuned
