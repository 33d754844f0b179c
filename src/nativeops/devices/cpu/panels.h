// SPDX-License-Identifier: Apache-2.0
// Matrix products from packed panels: a matrix of weights is packed once so that the inner loop
// reads it in one stream, and rows times panel are computed a block at a time in registers.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "nativeops/devices/cpu/numbers.h"
#include "nativeops/devices/cpu/pack.h"
#include "nativeops/devices/cpu/simd.h"

namespace nativeops::tuned {

// Words that hold two bf16, only where simd::has_pairs().
#if NATIVEOPS_LEVEL >= 2
struct Pairs : Numbers {
  static constexpr int kPerWord = 2;
  static int64_t words(int64_t numbers) { return ceil_div(numbers, 2); }
  static int64_t room(int64_t words) { return 2 * words; }
  static simd::Vec<float> fma(simd::Vec<float> a, simd::Vec<float> b, simd::Vec<float> c) {
    return simd::fma_pairs(a, b, c);
  }
};
#endif

// sums[r] = init[r] + Σ_k rows[r][k] · panel[k], for kRows rows and kVectors vectors. The sum of an
// element is taken in the order of k, whatever the block: no result depends on how work is split.
// `init` comes last: it may be such a sum itself, the same memory as `sums`, and in no cache.
// A row that is the only one is summed up in four parts: each product would wait for the one
// before. kFetch: a line from `soon` on is fetched into the second cache with each row of the
// panel.
template <class Of, int kRows, int kVectors, class A, int kParts = 1, bool kFetch = false>
void multiply_block(const A* const* rows, int64_t offset, int64_t depth, const A* panel,
                    const A* init, int64_t init_stride, A* sums, int64_t stride,
                    [[maybe_unused]] const A* soon) {
  constexpr int n = simd::kLanes<A>;
  simd::Vec<A> sum[kParts][kRows][kVectors];
  const A* row[kRows];
  simd::unroll<kRows>([&](auto r) {
    row[r] = rows[r] + offset;
    simd::unroll<kVectors>([&](auto v) {
      if (init_stride != 0) __builtin_prefetch(init + r * init_stride + v * n);
      for (int p = 0; p < kParts; ++p) sum[p][r][v] = simd::zero<A>();
    });
  });
  const auto add = [&](int64_t k, auto p) __attribute__((always_inline)) {
    if constexpr (kFetch) __builtin_prefetch(soon + k * n, 0, 2);
    if constexpr (kRows < kVectors) {  // the fewer ones stay in registers
      simd::Vec<A> value[kRows];
      simd::unroll<kRows>([&](auto r) { value[r] = simd::broadcast_from(row[r] + k); });
      simd::unroll<kVectors>([&](auto v) {
        const simd::Vec<A> weight = simd::load(panel + v * n);
        simd::unroll<kRows>(
            [&](auto r) { sum[p][r][v] = Of::fma(value[r], weight, sum[p][r][v]); });
      });
    } else {
      simd::Vec<A> weight[kVectors];
      simd::unroll<kVectors>([&](auto v) { weight[v] = simd::load(panel + v * n); });
      simd::unroll<kRows>([&](auto r) {
        const simd::Vec<A> value = simd::broadcast_from(row[r] + k);
        simd::unroll<kVectors>(
            [&](auto v) { sum[p][r][v] = Of::fma(value, weight[v], sum[p][r][v]); });
      });
    }
    panel += kVectors * n;
  };
  int64_t k = 0;
  for (; k + kParts <= depth; k += kParts) simd::unroll<kParts>([&](auto p) { add(k + p, p); });
  for (; kParts > 1 && k < depth; ++k) add(k, std::integral_constant<int, 0>());
  simd::unroll<kRows>([&](auto r) {
    simd::unroll<kVectors>([&](auto v) {
      if constexpr (kParts == 4) {
        sum[0][r][v] = (sum[0][r][v] + sum[1][r][v]) + (sum[2][r][v] + sum[3][r][v]);
      }
      simd::store(sums + r * stride + v * n,
                  sum[0][r][v] + simd::load(init + r * init_stride + v * n));
    });
  });
}

template <class A>
using MultiplyBlock = void (*)(const A* const*, int64_t, int64_t, const A*, const A*, int64_t, A*,
                               int64_t, const A*);
template <class Of, class A, int kVectors, bool kFetch, int... kRow>
MultiplyBlock<A> block_of(int rows, std::integer_sequence<int, kRow...>) {
  static constexpr MultiplyBlock<A> table[] = {
      &multiply_block<Of, kRow + 1, kVectors, A, 1, kFetch>...};
  return table[rows - 1];
}

// Blocks of nearly equal height, some of them together: body(first, rows).
template <class F>
void for_blocks(int64_t rows, int64_t most, F&& body, int64_t together = 1) {
  const int64_t blocks = ceil_div(rows, most);
  for (int64_t b = 0; b < blocks; b += together) {
    const int64_t first = b * rows / blocks;
    body(first, std::min(b + together, blocks) * rows / blocks - first);
  }
}
// rows[r] · panel for any number of rows. soon: see below.
template <class Of, int kVectors, class A, class Soon>
void multiply(const A* const* rows, int64_t count, int64_t offset, int64_t depth, const A* panel,
              const A* init, int64_t init_stride, A* sums, int64_t stride, bool alone, Soon soon) {
  if (alone) {
    return multiply_block<Of, 1, kVectors, A, 4>(rows, offset, depth, panel, init, init_stride,
                                                 sums, stride, nullptr);
  }
  constexpr auto heights = std::make_integer_sequence<int, kBlockRows<kVectors>>();
  [[maybe_unused]] constexpr int64_t n = simd::kLanes<A>;
  [[maybe_unused]] int64_t fetched = 0;
  for_blocks(count, kBlockRows<kVectors>, [&](int64_t first, int64_t height) {
    const A* fetch = nullptr;
    auto block = block_of<Of, A, kVectors, false>(static_cast<int>(height), heights);
    if constexpr (!std::is_same_v<Soon, std::nullptr_t>) {
      // The first block waits for this panel itself; the others find it in the second cache.
      if (soon != nullptr && first > 0 && fetched < depth * kVectors * n) {
        fetch = soon + fetched;
        fetched += depth * n;
        block = block_of<Of, A, kVectors, true>(static_cast<int>(height), heights);
      }
    }
    block(rows + first, offset, depth, panel, init + first * init_stride, init_stride,
          sums + first * stride, stride, fetch);
  });
}

// The same where only the run tells how wide the panel is. alone: there is one row, not only here
// but whatever the panels and blocks are. soon: the panel of the next product, as long as this one,
// which is fetched meanwhile into the second cache; null for none, nullptr where there never is
// one: half as much is then compiled.
template <class Of = Numbers, class A, class Soon = std::nullptr_t>
void multiply(int vectors, const A* const* rows, int64_t count, int64_t offset, int64_t depth,
              const A* panel, const A* init, int64_t init_stride, A* sums, int64_t stride,
              bool alone, Soon soon = nullptr) {
  if constexpr (Of::kAreTiles) {
    Of::multiply(vectors, rows, count, offset, depth, panel, init, init_stride, sums, stride);
  } else {
    auto with = [&](auto width) {
      multiply<Of, width>(rows, count, offset, depth, panel, init, init_stride, sums, stride, alone,
                          soon);
    };
    simd::with_one_of<1, 2, 3, 4>(vectors, with);
  }
}

// `vectors` vectors split into panels of at most `widest`, as equal as possible and as many for
// each thread as for the next.
struct Split {
  int64_t vectors, panels;

  Split(int64_t all, int64_t widest, int64_t threads)
      : vectors(all), panels(ceil_div(all, widest)) {
    if (panels > threads)
      panels = std::min(vectors, round_up(panels, threads));
    else
      panels = std::min(vectors, threads);
  }
  int64_t first(int64_t panel) const { return panel * vectors / panels; }
  int count(int64_t panel) const { return static_cast<int>(first(panel + 1) - first(panel)); }

  // The panels of one of so many items: one or none where there are more items than panels. They
  // are spread evenly, so that no thread's items are those without. first is the panel after those
  // of the item before.
  struct Range {
    int64_t first, end;
  };
  Range of_item(int64_t item, int64_t items) const {
    return {item * panels / items, (item + 1) * panels / items};
  }
};

}  // namespace nativeops::tuned
