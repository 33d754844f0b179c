// SPDX-License-Identifier: Apache-2.0
// Products of a few rows with a matrix of weights as it lies: for so few that packing the weights,
// or even reading them twice, would take longer than the product.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nativeops/devices/cpu/panels.h"
#include "nativeops/devices/cpu/simd.h"
#include "nativeops/devices/cpu/transpose.h"

namespace nativeops::tuned {

// Lane i of the result is the sum of all lanes of sums[i].
template <int kBit, class A>
void fold_step(simd::Vec<A> (&sums)[simd::kLanes<A>]) {
  if constexpr (kBit > 0) {
    constexpr auto lanes = std::make_integer_sequence<int, simd::kLanes<A>>();
    for (int i = 0; i < kBit; ++i) {
      simd::exchange<kBit>(sums[i], sums[i + kBit], lanes);
      sums[i] = sums[i] + sums[i + kBit];
    }
    fold_step<kBit / 2>(sums);
  }
}

// sums[r][j] = Σ_k rows[r][k] · weight[j][k] for kRows rows and as many rows of weights as make a
// whole register of sums; those from `count` on repeat the last one.
template <class Of, int kRows, class A, class T>
void dot_tile(const A* const* rows, const T* weight, int64_t weight_stride, int64_t count,
              int64_t depth, A* sums, int64_t stride) {
  constexpr int n = simd::kLanes<A>, kUnits = n / kRows;
  simd::Vec<A> sum[n];
  const A* unit[kUnits];
  for (int j = 0; j < kUnits; ++j) {
    const T* from = weight + std::min<int64_t>(j, count - 1) * weight_stride;
    unit[j] = reinterpret_cast<const A*>(from);  // numbers, or two bf16 in a word
  }
  simd::unroll<n>([&](auto i) { sum[i] = simd::zero<A>(); });
  auto add = [&](int64_t k, auto load) __attribute__((always_inline)) {
    simd::Vec<A> row[kRows];
    simd::unroll<kRows>([&](auto r) { row[r] = load(rows[r] + k); });
    simd::unroll<kUnits>([&](auto j) {
      const simd::Vec<A> w = load(unit[j] + k);
      simd::unroll<kRows>(
          [&](auto r) { sum[r * kUnits + j] = Of::fma(row[r], w, sum[r * kUnits + j]); });
    });
  };
  int64_t k = 0;
  for (; k + n <= depth; k += n) add(k, [](const A* from) { return simd::load(from); });
  if (k < depth) add(k, [&](const A* from) { return simd::load_first(from, depth - k); });
  fold_step<n / 2>(sum);
  alignas(64) A lane[n];
  simd::store(lane, sum[0]);
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < std::min<int64_t>(kUnits, count); ++j)
      sums[r * stride + j] = lane[r * kUnits + j];
  }
}

// The same for any number of rows, of weights and of sums.
template <class Of, class A, class T>
void dots(const A* const* rows, int64_t height, const T* weight, int64_t weight_stride,
          int64_t count, int64_t depth, A* sums, int64_t stride) {
  constexpr int n = simd::kLanes<A>;
  auto tiles = [&](auto kRows, int64_t r) {
    constexpr int kUnits = n / kRows;
    for (int64_t j = 0; j < count; j += kUnits) {
      dot_tile<Of, kRows>(rows + r, weight + j * weight_stride, weight_stride, count - j, depth,
                          sums + r * stride + j, stride);
    }
  };
  int64_t r = 0;
  for (; r + 4 <= height; r += 4) tiles(std::integral_constant<int, 4>(), r);
  if (r + 2 <= height) tiles(std::integral_constant<int, 2>(), r), r += 2;
  if (r < height) tiles(std::integral_constant<int, 1>(), r);
}

}  // namespace nativeops::tuned
