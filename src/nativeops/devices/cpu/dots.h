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
[[gnu::always_inline]] inline void fold_step(simd::Vec<A> (&sums)[simd::kLanes<A>]) {
  if constexpr (kBit > 0) {
    constexpr auto lanes = std::make_integer_sequence<int, simd::kLanes<A>>();
    for (int i = 0; i < kBit; ++i) {
      simd::exchange<kBit>(sums[i], sums[i + kBit], lanes);
      sums[i] = sums[i] + sums[i + kBit];
    }
    fold_step<kBit / 2>(sums);
  }
}

// The sum of parts, by halves.
template <class V, int kParts>
V add_up(const V (&part)[kParts]) {
  if constexpr (kParts == 1) {
    return part[0];
  } else {
    V half[kParts / 2];
    simd::unroll<kParts / 2>([&](auto p) { half[p] = part[2 * p] + part[2 * p + 1]; });
    return add_up(half);
  }
}

// sums[r][j] = Σ_k rows[r][k] · weight[j][k] for kRows rows and as many rows of weights as make a
// whole register of sums; those from `count` on repeat the last one. kSide of them are read side by
// side, each summed up in as many parts as keep the processor busy. kSoon: as far behind them as
// `soon` is there are rows that are needed next, which are fetched into the second cache.
template <class Of, int kRows, int kSide, bool kSoon = false, class A, class T>
void dot_tile(const A* const* rows, const T* weight, int64_t weight_stride, int64_t count,
              int64_t depth, A* sums, int64_t stride, int64_t soon = 0) {
  constexpr int n = simd::kLanes<A>, kUnits = n / kRows, kParts = kUnits / kSide;
  // Rows that begin where another page does are not seen coming. With more rows to multiply with,
  // there is time to wait.
  constexpr bool kFetch = kRows == 2 || kSide == 2;
  const int64_t ahead =
      kSide * weight_stride * static_cast<int64_t>(sizeof(T)) / static_cast<int64_t>(sizeof(A));
  simd::Vec<A> total[n];
  for (int first = 0; first < kUnits; first += kSide) {
    simd::Vec<A> sum[kSide][kRows][kParts];
    const A* unit[kSide];
    simd::unroll<kSide>([&](auto j) {
      const T* from = weight + std::min<int64_t>(first + j, count - 1) * weight_stride;
      unit[j] = reinterpret_cast<const A*>(from);  // numbers, or two bf16 in a word
      for (int i = 0; i < kRows * kParts; ++i) sum[j][i / kParts][i % kParts] = simd::zero<A>();
    });
    const auto add = [&](int64_t k, auto p, auto load) __attribute__((always_inline)) {
      simd::Vec<A> row[kRows];
      simd::unroll<kRows>([&](auto r) { row[r] = load(rows[r] + k); });
      simd::unroll<kSide>([&](auto j) {
        const simd::Vec<A> w = load(unit[j] + k);
        if (kFetch) __builtin_prefetch(unit[j] + k + ahead);
        if (kSoon) __builtin_prefetch(reinterpret_cast<const T*>(unit[j] + k) + soon, 0, 2);
        simd::unroll<kRows>([&](auto r) { sum[j][r][p] = Of::fma(row[r], w, sum[j][r][p]); });
      });
    };
    const auto whole = [](const A* from) { return simd::load(from); };
    int64_t k = 0;
    for (; k + n * kParts <= depth; k += n * kParts) {
      simd::unroll<kParts>([&](auto p) { add(k + p * n, p, whole); });
    }
    simd::unroll<kParts>([&](auto p) {
      const int64_t left = depth - k - p * n;
      if (left >= n) {
        add(k + p * n, p, whole);
      } else if (left > 0) {
        add(k + p * n, p, [&](const A* from) { return simd::load_first(from, left); });
      }
    });
    simd::unroll<kSide>([&](auto j) {
      simd::unroll<kRows>([&](auto r) { total[r * kUnits + first + j] = add_up(sum[j][r]); });
    });
  }
  fold_step<n / 2>(total);
  alignas(64) A lane[n];
  simd::store(lane, total[0]);
  simd::unroll<kRows>([&](auto r) {
    if (count >= kUnits) return void(std::copy_n(lane + r * kUnits, kUnits, sums + r * stride));
    for (int j = 0; j < count; ++j) sums[r * stride + j] = lane[r * kUnits + j];
  });
}

// The same for any number of rows, of weights and of sums. The second cache delivers a few long
// rows of weights in their order nearly twice as fast as sixteen side by side. soon: the first of
// as many rows of weights that are needed next, or null.
template <class Of, class A, class T>
void dots(const A* const* rows, int64_t height, const T* weight, int64_t weight_stride,
          int64_t count, int64_t depth, A* sums, int64_t stride, const T* soon = nullptr) {
  constexpr int n = simd::kLanes<A>;
  const auto tiles = [&](auto kRows, auto kSide, int64_t r) {
    constexpr int kUnits = n / kRows;
    for (int64_t j = 0; j < count; j += kUnits) {
      const T* const from = weight + j * weight_stride;
      A* const to = sums + r * stride + j;
      if constexpr (kRows == 4) {
        if (soon != nullptr && r == 0) {
          dot_tile<Of, kRows, kSide, true>(rows + r, from, weight_stride, count - j, depth, to,
                                           stride, soon - weight);
          continue;
        }
      }
      dot_tile<Of, kRows, kSide>(rows + r, from, weight_stride, count - j, depth, to, stride);
    }
  };
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, 4> four;
  int64_t r = 0;
  for (; r + 4 <= height; r += 4) tiles(four, std::integral_constant<int, n / 4>(), r);
  if (r + 3 == height) {  // the time is that of reading the weights: a fourth row costs nothing
    const A* const four_rows[] = {rows[r], rows[r + 1], rows[r + 2], rows[r + 2]};
    A made[4 * n];
    for (int64_t j = 0; j < count; j += n) {
      const int64_t some = std::min<int64_t>(n, count - j);
      dots<Of>(four_rows, 4, weight + j * weight_stride, weight_stride, some, depth, made, n,
               r == 0 && soon != nullptr ? soon + j * weight_stride : nullptr);
      for (int i = 0; i < 3; ++i) std::copy_n(made + i * n, some, sums + (r + i) * stride + j);
    }
    return;
  }
  if (r + 2 <= height) {
    constexpr std::integral_constant<int, n / 2> all;
    constexpr std::integral_constant<int, n / 4> half;
    depth >= n * n * 2 ? tiles(two, half, r) : tiles(two, all, r);
    r += 2;
  }
  if (r == height) return;
  if (depth >= n * n) return tiles(one, two, r);
  if (depth >= n * n / 2) return tiles(one, four, r);
  tiles(one, std::integral_constant<int, n>(), r);
}

// Up to so many rows, `add_rows` takes less time than to pack the weights and multiply then (Zen5
// EPYC, 2026-11).
constexpr int64_t kFewForPacking = 24;

// sums[r][j] += Σ_k rows[r][offset + k] · weight[k][j] for kDeep rows of weights, `count` numbers
// each. The last vector of sums is a whole one.
template <int kRows, int kDeep, class A>
void add_some_rows(const A* const* rows, int64_t offset, const A* weight, int64_t weight_stride,
                   int64_t count, A* sums, int64_t stride) {
  constexpr int n = simd::kLanes<A>;
  simd::Vec<A> value[kRows][kDeep];
  simd::unroll<kRows>([&](auto r) {
    simd::unroll<kDeep>([&](auto d) { value[r][d] = simd::broadcast(rows[r][offset + d]); });
  });
  const auto add = [&](int64_t j, auto load) __attribute__((always_inline)) {
    simd::Vec<A> w[kDeep];
    simd::unroll<kDeep>([&](auto d) { w[d] = load(weight + d * weight_stride + j); });
    simd::unroll<kRows>([&](auto r) {
      simd::Vec<A> sum = simd::load(sums + r * stride + j);
      simd::unroll<kDeep>([&](auto d) { sum = simd::fma(value[r][d], w[d], sum); });
      simd::store(sums + r * stride + j, sum);
    });
  };
  int64_t j = 0;
  for (; j + n <= count; j += n) add(j, [](const A* from) { return simd::load(from); });
  if (j < count) add(j, [&](const A* from) { return simd::load_first(from, count - j); });
}

// The same for `depth` rows of weights and any number of rows, in the order of k: a few rows of
// weights after the other, each from end to end.
template <class A>
void add_rows(const A* const* rows, int64_t height, int64_t offset, int64_t depth, const A* weight,
              int64_t weight_stride, int64_t count, A* sums, int64_t stride) {
  constexpr int kDeep = 8, kValues = NATIVEOPS_LEVEL >= 2 ? 16 : 8;
  for (int64_t k0 = 0; k0 < depth; k0 += kDeep) {
    const int64_t end = std::min(k0 + kDeep, depth);
    const auto some = [&](auto height, int64_t r) {
      constexpr int kOnce = std::min(kDeep, kValues / height);
      int64_t k = k0;
      for (; k + kOnce <= end; k += kOnce) {
        add_some_rows<height, kOnce>(rows + r, offset + k, weight + k * weight_stride,
                                     weight_stride, count, sums + r * stride, stride);
      }
      for (; k < end; ++k) {
        add_some_rows<height, 1>(rows + r, offset + k, weight + k * weight_stride, weight_stride,
                                 count, sums + r * stride, stride);
      }
    };
    int64_t r = 0;
    for (; r + 4 <= height; r += 4) some(std::integral_constant<int, 4>(), r);
    for (; r + 2 <= height; r += 2) some(std::integral_constant<int, 2>(), r);
    if (r < height) some(std::integral_constant<int, 1>(), r);
  }
}

}  // namespace nativeops::tuned
