// SPDX-License-Identifier: Apache-2.0
// What products of matrices are made of: parts of both matrices in the order in which they are
// read, a block of sums in registers, and sums on their way to the result.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "nativeops/devices/cpu/vectors.h"
#include "nativeops/devices/cpu/work.h"
#include "nativeops/devices/product.h"
#if NATIVEOPS_LEVEL > 0
#include "nativeops/devices/cpu/pack.h"
#endif

namespace nativeops::matrix_product {

using simd::kLanes;
using tuned::ceil_div;
using tuned::parallel_if_large;
using tuned::round_up;
using tuned::worth_sharing;

// A matrix of any dtype.
struct Matrix {
  void* data;
  NativeopsDtype dtype;
  int64_t size[2], stride[2];
};
inline Matrix matrix(const NativeopsMatrices& all, int64_t i) {
  return {static_cast<char*>(all.data) + i * all.stride[0] * (all.dtype.bits / 8),
          all.dtype,
          {all.size[1], all.size[2]},
          {all.stride[1], all.stride[2]}};
}
inline Matrix transpose(const Matrix& m) {
  return {m.data, m.dtype, {m.size[1], m.size[0]}, {m.stride[1], m.stride[0]}};
}

// f(the matrix as a view of its numbers), which are summed up as A.
template <class A, class F>
void with_numbers(const Matrix& m, F&& f) {
  const auto as = [&](auto number) {
    using T = decltype(number);
    f(View<T, 2>{static_cast<T*>(m.data), {m.size[0], m.size[1]}, {m.stride[0], m.stride[1]}});
  };
  if constexpr (std::is_same_v<A, double>) {
    as(double());
  } else {
    if (m.dtype.bits == 32) return as(float());
    m.dtype.code == kNativeopsBfloat ? as(bf16()) : as(f16());
  }
}

struct Range {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};
// One of so many nearly equal parts.
inline Range part_of(int64_t all, int64_t i, int64_t parts) {
  return {i * all / parts, (i + 1) * all / parts};
}

// Numbers of k that are summed up in registers: the columns of a block are then half of the first
// cache.
constexpr int64_t kDepth = 256;
// A block of sums, which are nearly all registers. Its rows lie one behind the other, for each k.
constexpr int kBlockVectors = 2;
template <class A>
constexpr int kBlockColumns = kBlockVectors * kLanes<A>;
constexpr int kBlockRows = NATIVEOPS_LEVEL >= 2 ? 14 : NATIVEOPS_LEVEL == 1 ? 6 : 4;
template <class A>
constexpr int64_t kRowRoom = (kBlockRows + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
// A tile: as many blocks as leave the sums of one thread, and its rows, in the second cache.
template <class A>
constexpr int64_t kTileBlocks = 96 / kRowRoom<A>;
template <class A>
constexpr int64_t kTileRows = kTileBlocks<A> * kBlockRows;
template <class A>
constexpr int64_t kTileColumns = 4 * kBlockColumns<A>;

// `from`, row by row, each at the next `width` numbers of `to`; zeros up to a whole vector.
template <class A, class T>
void copy_part(const In<T, 2>& from, A* to, int64_t width) {
#if NATIVEOPS_LEVEL > 0
  tuned::pack(from, to, width);
#else
  for (int64_t r = 0; r < from.size(0); ++r) {
    for (int64_t c = 0; c < width; ++c) {
      to[r * width + c] = c < from.size(1) ? static_cast<A>(from(r, c)) : A(0);
    }
  }
#endif
}

template <class T>
In<T, 2> part(const View<T, 2>& m, Range rows, Range columns) {
  return {m.data + rows.begin * m.stride(0) + columns.begin * m.stride(1),
          {rows.count(), columns.count()},
          {m.stride(0), m.stride(1)}};
}

// Rows of the left matrix from k on: blocks of nearly equal height.
template <class A>
void copy_left(const Matrix& m, Range rows, Range k, A* to) {
  with_numbers<A>(m, [&](const auto& view) {
    const int64_t blocks = ceil_div(rows.count(), kBlockRows);
    for (int64_t b = 0; b < blocks; ++b, to += kRowRoom<A> * k.count()) {
      const Range some = part_of(rows.count(), b, blocks);
      copy_part<A>(
          nativeops::transpose(part(view, {rows.begin + some.begin, rows.begin + some.end}, k)), to,
          kRowRoom<A>);
    }
  });
}
// Columns of the right one; the last block's may be one vector.
template <class A>
void copy_right(const Matrix& m, Range columns, Range k, A* to) {
  with_numbers<A>(m, [&](const auto& view) {
    for (int64_t j = columns.begin; j < columns.end; j += kBlockColumns<A>) {
      const int64_t some = std::min<int64_t>(kBlockColumns<A>, columns.end - j);
      const int64_t width = round_up(some, kLanes<A>);
      copy_part<A>(part(view, k, {j, j + some}), to, width);
      to += width * k.count();
    }
  });
}

// sums[r][c] (+)= Σ_k left[k][r]·right[k][c], in the order of k. What is read next is fetched
// meanwhile, as no processor sees it coming where a page ends (17 % of the time, Zen5 EPYC,
// 2026-11): what lies behind `left` into the first cache, `soon` into the second.
template <class A, int kVectors, int kRows>
void multiply_block(const A* left, const A* right, int64_t depth, A* sums, int64_t stride,
                    bool fresh, const A* soon) {
  constexpr int n = kLanes<A>, kAhead = 64, kLines = kRowRoom<A> * sizeof(A) / 64;
  simd::Vec<A> sum[kRows][kVectors];
  simd::unroll<kRows>(
      [&](auto r) { simd::unroll<kVectors>([&](auto v) { sum[r][v] = simd::zero<A>(); }); });
  for (int64_t k = 0; k < depth; ++k, left += kRowRoom<A>, right += kVectors * n) {
    for (int line = 0; line < std::max(kLines, 1); ++line) {
      __builtin_prefetch(left + kAhead * kRowRoom<A> + line * 64 / sizeof(A));
    }
    __builtin_prefetch(soon + k * n, 0, 2);
    simd::Vec<A> column[kVectors];
    simd::unroll<kVectors>([&](auto v) { column[v] = simd::load(right + v * n); });
    simd::unroll<kRows>([&](auto r) {
      const simd::Vec<A> row = simd::broadcast_from(left + r);
      simd::unroll<kVectors>([&](auto v) { sum[r][v] = simd::fma(row, column[v], sum[r][v]); });
    });
  }
  simd::unroll<kRows>([&](auto r) {
    simd::unroll<kVectors>([&](auto v) {
      A* to = sums + r * stride + v * n;
      simd::store(to, fresh ? sum[r][v] : simd::load(to) + sum[r][v]);
    });
  });
}

template <class A>
using Block = void (*)(const A*, const A*, int64_t, A*, int64_t, bool, const A*);
template <class A, int kVectors, int... kRow>
Block<A> block_of(int64_t rows, std::integer_sequence<int, kRow...>) {
  static constexpr Block<A> table[] = {&multiply_block<A, kVectors, kRow + 1>...};
  return table[rows - 1];
}

// All blocks of a tile, from what copy_left and copy_right have made.
template <class A>
void multiply_tile(const A* left, const A* right, int64_t depth, int64_t rows, int64_t columns,
                   A* sums, bool fresh) {
  constexpr auto heights = std::make_integer_sequence<int, kBlockRows>();
  const int64_t blocks = ceil_div(rows, kBlockRows);
  for (int64_t j = 0; j < columns; j += kBlockColumns<A>) {
    const bool one = columns - j <= kLanes<A>;
    const int64_t width = one ? kLanes<A> : kBlockColumns<A>;
    for (int64_t b = 0; b < blocks; ++b) {
      const Range some = part_of(rows, b, blocks);
      const auto block = one ? block_of<A, 1>(some.count(), heights)
                             : block_of<A, kBlockVectors>(some.count(), heights);
      const A* half_of_next = right + width * depth + b % 2 * kLanes<A> * depth;
      block(left + b * kRowRoom<A> * depth, right, depth, sums + some.begin * kTileColumns<A> + j,
            kTileColumns<A>, fresh, half_of_next);
    }
    right += width * depth;
  }
}

// A row of sums to its place; constants make vectors of it.
template <class A, class T, class Stride>
void put_row(const A* __restrict sum, T* __restrict to, Stride stride, int64_t count,
             Scaled<A> scaled) {
  if (scaled.alpha == 1 && scaled.beta == 0) {
    for (int64_t j = 0; j < count; ++j) to[j * stride] = T(sum[j]);
    return;
  }
  for (int64_t j = 0; j < count; ++j) {
    to[j * stride] = T(scaled.finish(sum[j], A(to[j * stride])));
  }
}
template <class A>
void put(const Matrix& c, Range rows, Range columns, const A* sums, int64_t stride,
         Scaled<A> scaled) {
  with_numbers<A>(c, [&](const auto& view) {
    for (int64_t r = rows.begin; r < rows.end; ++r, sums += stride) {
      auto* to = view.data + r * view.stride(0) + columns.begin * view.stride(1);
      if (view.stride(1) == 1) {
        put_row(sums, to, std::integral_constant<int64_t, 1>(), columns.count(), scaled);
      } else {
        put_row(sums, to, view.stride(1), columns.count(), scaled);
      }
    }
  });
}

}  // namespace nativeops::matrix_product
