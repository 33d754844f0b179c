// SPDX-License-Identifier: Apache-2.0
// What products of matrices are made of: parts of both matrices in the order in which they are
// read, a block of sums in registers, and sums on their way to the result.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "nativeops/devices/cpu/numbers.h"
#include "nativeops/devices/cpu/vectors.h"
#include "nativeops/devices/cpu/work.h"
#include "nativeops/devices/matrix.h"
#include "nativeops/devices/product.h"
#if NATIVEOPS_LEVEL > 0
#include "nativeops/devices/cpu/panels.h"
#endif

namespace nativeops::matrix_product {

using simd::kLanes;
using tuned::Numbers;
using tuned::parallel_if_large;
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
  return nativeops::columns(nativeops::rows(m, rows.begin, rows.count()), columns.begin,
                            columns.count());
}

// How a product is computed by blocks of vectors, which are nearly all registers. A: what is summed
// up; Of: what a word of the copies holds, a number or two bf16.
template <class A, class Of>
struct Blocks {
  using Number = A;
  using Thread = typename Of::Thread;
  static constexpr int n = kLanes<A>, kVectors = 2, kColumns = kVectors * n;
  static constexpr int kRows = NATIVEOPS_LEVEL >= 2 ? 14 : NATIVEOPS_LEVEL == 1 ? 6 : 4;
  // A block's rows lie side by side for each k, its columns as well.
  static constexpr int kRoom = round_up(kRows, n);
  // Words that are summed up in registers: the columns of a block are then half of the first cache.
  static constexpr int64_t kDepth = 256;
  // A tile: as many blocks as leave the sums of one thread, and its rows, in the second cache.
  static constexpr int64_t kTileRows = 96 / kRoom * kRows, kTileColumns = 4 * kColumns;

  static int64_t words(int64_t depth) { return Of::words(depth); }
  static int64_t room(int64_t rows) { return ceil_div(rows, kRows) * kRoom; }

  // The words k of rows of the left matrix: blocks of nearly equal height.
  static void copy_left(const Matrix& m, Range rows, Range k, A* to) {
    with_numbers<A>(m, [&](const auto& view) {
      const int64_t blocks = ceil_div(rows.count(), kRows);
      for (int64_t b = 0; b < blocks; ++b, to += kRoom * k.count()) {
        const Range some = part_of(rows.count(), b, blocks);
        const Range block{rows.begin + some.begin, rows.begin + some.end};
        copy_words(nativeops::transpose(part(view, block, numbers(k, m.size[1]))), to, kRoom);
      }
    });
  }
  // The same of columns of the right one; those of the last block may be one vector.
  static void copy_right(const Matrix& m, Range columns, Range k, A* to) {
    with_numbers<A>(m, [&](const auto& view) {
      for (int64_t j = columns.begin; j < columns.end; j += kColumns) {
        const int64_t some = std::min<int64_t>(kColumns, columns.end - j);
        const int64_t width = round_up(some, n);
        copy_words(part(view, numbers(k, m.size[0]), {j, j + some}), to, width);
        to += width * k.count();
      }
    });
  }

  // All blocks of a tile, from such copies; what was summed up before counts unless it is `fresh`.
  static void multiply(const A* left, const A* right, int64_t depth, int64_t rows, int64_t columns,
                       A* sums, bool fresh) {
    constexpr auto heights = std::make_integer_sequence<int, kRows>();
    const int64_t blocks = ceil_div(rows, kRows);
    for (int64_t j = 0; j < columns; j += kColumns) {
      const bool one = columns - j <= n;
      const int64_t width = one ? n : kColumns;
      for (int64_t b = 0; b < blocks; ++b) {
        const Range some = part_of(rows, b, blocks);
        const auto block =
            one ? block_of<1>(some.count(), heights) : block_of<kVectors>(some.count(), heights);
        const A* half_of_next = right + width * depth + b % 2 * n * depth;
        block(left + b * kRoom * depth, right, depth, sums + some.begin * kTileColumns + j, fresh,
              half_of_next);
      }
      right += width * depth;
    }
  }

 private:
  static Range numbers(Range words, int64_t depth) {
    return {words.begin * Of::kPerWord, std::min(words.end * Of::kPerWord, depth)};
  }

  template <class T>
  static void copy_words(const In<T, 2>& from, A* to, int64_t width) {
    if constexpr (Of::kPerWord == 1) {
      copy_part(from, to, width);
    }
#if NATIVEOPS_LEVEL >= 2
    else {
      constexpr int64_t kSome = 32;
      alignas(64) A some[kSome * kColumns];
      for (int64_t k = 0; k < from.size(0); k += kSome) {
        const int64_t rows = std::min(kSome, from.size(0) - k);
        copy_part(part(from, {k, k + rows}, {0, from.size(1)}), some, width);
        if (rows % 2 == 1) std::fill_n(some + rows * width, width, A(0));
        for (const A* row = some; row < some + rows * width; row += 2 * width) {
          for (int64_t c = 0; c < width; c += n, to += n) {
            simd::store(to, simd::words_of(simd::load(row + c), simd::load(row + width + c)));
          }
        }
      }
    }
#endif
  }

  // sums[r][c] (+)= Σ_k left[k][r]·right[k][c], in the order of k. What is read next is fetched
  // meanwhile, as no processor sees it coming where a page ends (17 % of the time, Zen5 EPYC,
  // 2026-11): what lies behind `left` into the first cache, `soon` into the second.
  template <int kWide, int kHigh>
  static void block(const A* left, const A* right, int64_t depth, A* sums, bool fresh,
                    const A* soon) {
    constexpr int kAhead = 64, kLine = 64 / sizeof(A);
    simd::Vec<A> sum[kHigh][kWide];
    simd::unroll<kHigh>(
        [&](auto r) { simd::unroll<kWide>([&](auto v) { sum[r][v] = simd::zero<A>(); }); });
    for (int64_t k = 0; k < depth; ++k, left += kRoom, right += kWide * n) {
      for (int i = 0; i < kRoom; i += kLine) __builtin_prefetch(left + kAhead * kRoom + i);
      __builtin_prefetch(soon + k * n, 0, 2);
      simd::Vec<A> column[kWide];
      simd::unroll<kWide>([&](auto v) { column[v] = simd::load(right + v * n); });
      simd::unroll<kHigh>([&](auto r) {
        const simd::Vec<A> row = simd::broadcast_from(left + r);
        simd::unroll<kWide>([&](auto v) { sum[r][v] = Of::fma(row, column[v], sum[r][v]); });
      });
    }
    simd::unroll<kHigh>([&](auto r) {
      simd::unroll<kWide>([&](auto v) {
        A* to = sums + r * kTileColumns + v * n;
        simd::store(to, fresh ? sum[r][v] : simd::load(to) + sum[r][v]);
      });
    });
  }

  using Block = void (*)(const A*, const A*, int64_t, A*, bool, const A*);
  template <int kWide, int... kRow>
  static Block block_of(int64_t rows, std::integer_sequence<int, kRow...>) {
    static constexpr Block table[] = {&block<kWide, kRow + 1>...};
    return table[rows - 1];
  }
};

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
