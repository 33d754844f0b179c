// SPDX-License-Identifier: Apache-2.0
// Both gradients of a pairwise sum in one pass: lanes along k, a block of rows of x in registers, a
// loop over the rows of y. A task owns a slice of k, so that it owns its part of both gradients.
#pragma once
#include "nativeops/devices/cpu/pack.h"

namespace nativeops::tuned {

// Zen4 EPYC, 2026-11: y and d_y of one block in the first-level cache, x and d_x in the second.
template <class A>
struct GradBlock {
  static constexpr int kVecs = NATIVEOPS_LEVEL >= 2 ? 2 : 1;
  static constexpr int kRows = NATIVEOPS_LEVEL >= 2 ? 6 : 4;
  static constexpr int64_t kWidth = kVecs * simd::kLanes<A>;         // of a slice of k
  static constexpr int64_t kX = 384, kY = 96;                        // rows of x and of y
  static constexpr int64_t kSums = (int64_t{24} << 20) / sizeof(A);  // numbers of d_y, at most
};

// Packed rows of kWidth numbers: x with d_x, y with d_y; and d_out as it lies, rows `stride` apart.
template <class A>
struct GradOperands {
  const A *x, *y, *d_out;
  int64_t stride, n_y;
  A *d_x, *d_y;
};

// kRows rows of x against n_y rows of y. `term` gives d(i,k), the derivative of the (i,j,k)-th term
// by x; that by y is its negative. The operands by reference, as in pack.h.
template <class Term, bool kX, bool kY, int kRows, int kVecs, class A>
void pairwise_grad_kernel(Term term, const GradOperands<A>& operands) {
  GradOperands<A> at = operands;
  using Block = GradBlock<A>;
  using V = simd::Vec<A>;
  constexpr int n = simd::kLanes<A>;
  V x[kRows][kVecs], d_x[kRows][kVecs], y[kVecs], d_y[kVecs];
  const auto each = [&](auto body) __attribute__((always_inline)) {
    simd::unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      simd::unroll<kVecs>([&](auto v) __attribute__((always_inline)) { body(r, v); });
    });
  };
  each([&](auto r, auto v) __attribute__((always_inline)) {
    x[r][v] = simd::load(at.x + r * Block::kWidth + v * n);
    d_x[r][v] = kX ? simd::load(at.d_x + r * Block::kWidth + v * n) : simd::zero<A>();
  });
  for (int64_t j = 0; j < at.n_y; ++j, ++at.d_out, at.y += Block::kWidth) {
    simd::unroll<kVecs>([&](auto v) __attribute__((always_inline)) {
      y[v] = simd::load(at.y + v * n);
      d_y[v] = kY ? simd::load(at.d_y + v * n) : simd::zero<A>();
    });
    each([&](auto r, auto v) __attribute__((always_inline)) {
      term.template add<r, kX, kY>(x[r][v], y[v], at.d_out + r * at.stride, d_x[r][v], d_y[v]);
    });
    simd::unroll<kVecs>([&](auto v) __attribute__((always_inline)) {
      if (kY) simd::store(at.d_y + v * n, d_y[v]);
    });
    if (kY) at.d_y += Block::kWidth;
  }
  each([&](auto r, auto v) __attribute__((always_inline)) {
    if (kX) simd::store(at.d_x + r * Block::kWidth + v * n, d_x[r][v]);
  });
}

// One strip of x, in heights 6 (or 4), 2, 1 as far as there are rows.
template <class Term, bool kX, bool kY, int kRows, class A>
void pairwise_grad_strip(Term term, GradOperands<A> at, int64_t rows, bool narrow) {
  using Block = GradBlock<A>;
  for (; rows >= kRows; rows -= kRows) {
    if (narrow) {
      pairwise_grad_kernel<Term, kX, kY, kRows, 1>(term, at);
    } else {
      pairwise_grad_kernel<Term, kX, kY, kRows, Block::kVecs>(term, at);
    }
    at.x += kRows * Block::kWidth;
    at.d_x += kRows * Block::kWidth;
    at.d_out += kRows * at.stride;
  }
  if constexpr (kRows > 1) {
    pairwise_grad_strip<Term, kX, kY, (kRows > 2 ? 2 : 1)>(term, at, rows, narrow);
  }
}

// Packed rows `at` of x against the block d_out, whose rows are packed too if they do not lie
// right.
template <class Term, bool kX, bool kY, class A, class D>
void pairwise_grad_block(Term term, GradOperands<A> at, In<D, 2> d_out, bool narrow) {
  using Block = GradBlock<A>;
  at.n_y = d_out.size(1);
  if constexpr (std::is_same_v<A, D>) {
    if (d_out.stride(1) == 1) {
      at.d_out = d_out.data, at.stride = d_out.stride(0);
      return pairwise_grad_strip<Term, kX, kY, Block::kRows>(term, at, d_out.size(0), narrow);
    }
  }
  alignas(64) A packed[Block::kRows * Block::kY];
  at.d_out = packed, at.stride = Block::kY;
  for (int64_t i = 0; i < d_out.size(0); i += Block::kRows) {
    const auto strip = part(d_out, i, Block::kRows, 0, at.n_y);
    pack(strip, packed, Block::kY);
    pairwise_grad_strip<Term, kX, kY, Block::kRows>(term, at, strip.size(0), narrow);
    at.x += Block::kRows * Block::kWidth;
    if (kX) at.d_x += Block::kRows * Block::kWidth;
  }
}

// One task: some rows of x, all rows of y, one slice of k. d_y is packed.
template <class Term, bool kX, bool kY, class A, class T, class D>
void pairwise_grad_slice(Term term, In<T, 2> x, In<T, 2> y, In<D, 2> d_out, Out<T, 2> d_x, A* d_y) {
  using Block = GradBlock<A>;
  alignas(64) A x_rows[Block::kX * Block::kWidth], d_x_rows[Block::kX * Block::kWidth];
  alignas(64) A y_rows[Block::kY * Block::kWidth];
  const int64_t m = y.size(0), width = x.size(1);
  if (kY) std::fill_n(d_y, m * Block::kWidth, A(0));
  for (int64_t i = 0; i < x.size(0); i += Block::kX) {
    const auto x_part = part(x, i, Block::kX, 0, width);
    pack(x_part, x_rows, Block::kWidth);
    if (kX) std::fill_n(d_x_rows, x_part.size(0) * Block::kWidth, A(0));
    for (int64_t j = 0; j < m; j += Block::kY) {
      pack(part(y, j, Block::kY, 0, width), y_rows, Block::kWidth);
      A* d_y_rows = kY ? d_y + j * Block::kWidth : nullptr;
      const GradOperands<A> at{x_rows, y_rows, nullptr, 0, 0, d_x_rows, d_y_rows};
      const auto d_part = part(d_out, i, Block::kX, j, Block::kY);
      pairwise_grad_block<Term, kX, kY>(term, at, d_part, width <= simd::kLanes<A>);
    }
    if (kX) unpack(d_x_rows, Block::kWidth, part(d_x, i, Block::kX, 0, width));
  }
}

// The parts of d_y that were summed over different rows of x, added in order.
template <class A, class T>
void add_parts(const A* parts, int64_t n_parts, int64_t rows, int64_t row, Out<T, 2> d_y) {
  constexpr int64_t width = GradBlock<A>::kWidth;
  alignas(64) A sum[width];
  for (int64_t j = 0; j < d_y.size(0); ++j) {
    const A* first = parts + (row + j) * width;
    for (int64_t k = 0; k < width; ++k) sum[k] = first[k];
    for (int64_t p = 1; p < n_parts; ++p) {
      for (int64_t k = 0; k < width; ++k) sum[k] += first[p * rows * width + k];
    }
    unpack(sum, width, part(d_y, j, 1, 0, width));
  }
}

// How the work is cut, by its sizes alone: one slice of k of one matrix is a pair; several parts of
// x's rows share a pair where there are few, each with sums of its own; and as many pairs run at a
// time as there is memory for the sums.
struct GradPlan {
  int64_t slices, pairs, parts, rows, pairs_at_once;
};

template <bool kY, class A>
GradPlan plan_grad(int64_t n_batch, int64_t n, int64_t m, int64_t d) {
  using Block = GradBlock<A>;
  constexpr int64_t kTasks = 32;
  GradPlan plan;
  plan.slices = ceil_div(d, Block::kWidth);
  plan.pairs = n_batch * plan.slices;
  const int64_t sums = kY ? std::max<int64_t>(1, m * Block::kWidth) : 1;
  const int64_t room = std::max<int64_t>(1, Block::kSums / sums);
  const int64_t wanted = std::min(kTasks / std::max<int64_t>(1, plan.pairs), n / 48);
  plan.rows = round_up(ceil_div(n, std::clamp<int64_t>(wanted, 1, room)), Block::kRows);
  plan.parts = std::max<int64_t>(1, ceil_div(n, std::max<int64_t>(1, plan.rows)));
  plan.pairs_at_once = std::max<int64_t>(1, room / plan.parts);
  return plan;
}

template <class Term, bool kX, bool kY, class T, class D>
void pairwise_grad_parts(Device& dev, Term term, In<T, 3> x, In<T, 3> y, In<D, 3> d_out,
                         Out<T, 3> d_x, Out<T, 3> d_y) {
  using A = Accum<T>;
  using Block = GradBlock<A>;
  const int64_t n = x.size(1), m = y.size(1), d = x.size(2), width = Block::kWidth;
  const GradPlan plan = plan_grad<kY, A>(x.size(0), n, m, d);
  const int64_t sums = m * width, steps = n * m * Block::kVecs;
  Scratch<A, 4096> d_y_parts(dev,
                             kY ? std::min(plan.pairs_at_once, plan.pairs) * plan.parts * sums : 0);
  for (int64_t first = 0; first < plan.pairs; first += plan.pairs_at_once) {
    const int64_t pairs = std::min(plan.pairs_at_once, plan.pairs - first);
    parallel_if_large(dev, pairs * plan.parts, pairs * steps, [&](int64_t task) {
      // Part by part: the slices of one read the same rows of d_out.
      const int64_t p = task / pairs, pair = task % pairs, i = p * plan.rows;
      const int64_t b = (first + pair) / plan.slices, k = (first + pair) % plan.slices * width;
      const auto d_x_part = kX ? part(at(d_x, b), i, plan.rows, k, width) : Out<T, 2>{};
      pairwise_grad_slice<Term, kX, kY, A>(
          term, part(at(x, b), i, plan.rows, k, width), part(at(y, b), 0, m, k, width),
          part(at(d_out, b), i, plan.rows, 0, m), d_x_part,
          kY ? d_y_parts.data() + (pair * plan.parts + p) * sums : nullptr);
    });
    if (!kY) continue;
    constexpr int64_t kRowsAtOnce = 256;
    const int64_t blocks = ceil_div(m, kRowsAtOnce);
    parallel_if_large(dev, pairs * blocks, pairs * plan.parts * m, [&](int64_t task) {
      const int64_t pair = task / blocks, row = task % blocks * kRowsAtOnce;
      const int64_t b = (first + pair) / plan.slices, k = (first + pair) % plan.slices * width;
      add_parts(d_y_parts.data() + pair * plan.parts * sums, plan.parts, m, row,
                part(at(d_y, b), row, kRowsAtOnce, k, width));
    });
  }
}

// d_x[i,k] = Σ_j d(i,k) and d_y[j,k] = -Σ_i d(i,k), with d as `term` makes it from x, y and d_out,
// which may have been made in their accumulator's dtype.
template <class Term, class T, class D>
void pairwise_grad(Device& dev, Term term, In<T, 3> x, In<T, 3> y, In<D, 3> d_out, Out<T, 3> d_x,
                   Out<T, 3> d_y) {
  // The formula is symmetric: where y is so long that its sums leave room for few tasks, the roles
  // change.
  using Block = GradBlock<Accum<T>>;
  const bool long_y = y.size(1) * Block::kWidth * 8 > Block::kSums && y.size(1) > x.size(1);
  if (long_y) std::swap(x, y), std::swap(d_x, d_y), d_out = transpose(d_out);
  if (d_x && d_y) return pairwise_grad_parts<Term, true, true>(dev, term, x, y, d_out, d_x, d_y);
  if (d_x) return pairwise_grad_parts<Term, true, false>(dev, term, x, y, d_out, d_x, d_y);
  if (d_y) return pairwise_grad_parts<Term, false, true>(dev, term, x, y, d_out, d_x, d_y);
}

}  // namespace nativeops::tuned
