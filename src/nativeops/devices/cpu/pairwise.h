// SPDX-License-Identifier: Apache-2.0
// out[b,i,j] = fold over k of x[b,i,k] and y[b,j,k], blocked like a matrix product: lanes along j,
// kRows x kVecs sums in registers, a block of y in the second-level cache, a strip of x in the
// first. The kernel's loop is nothing but the formula: measured in benchmarks/NOTES.md.
#pragma once
#include "nativeops/devices/cpu/pack.h"

namespace nativeops::tuned {

// Registers hold kRows * kVecs sums, a row of y, constants and temporaries. Numbers of one block of
// y: kCols * kDepth. Zen4 EPYC, 2026-11.
template <class A>
struct PairwiseBlock {
  static constexpr int kVecs = 2;
  static constexpr int kRows = NATIVEOPS_LEVEL >= 2 ? 12 : 4;
  static constexpr int64_t kWidth = kVecs * simd::kLanes<A>;
  static constexpr int64_t kDepth = 1024 / sizeof(A);
  static constexpr int64_t kCols = 1024 / sizeof(A);
  static constexpr int64_t kStripWidth = kDepth + 64 / sizeof(A);  // rows in different cache sets
  static constexpr int64_t kMaxRows = 960;
};

// What the kernel computes into: the result itself, or packed rows where that has another type or
// layout, from row i and column j of the block on. `more` says that earlier parts of the sum are
// there already, `last` that no later ones follow, `stream` that nobody reads them soon: they are
// written past the caches.
template <class A>
struct Sums {
  A* data;
  int64_t width, i, j;
  bool more, last, stream;

  Sums at(int64_t rows, int64_t cols) const {
    return {data + rows * width + cols, width, i + rows, j + cols, more, last, stream};
  }
};

// The block of kRows rows of x and kVecs vectors of y: x row by row, y by k. `sums` by reference,
// as in pack.h.
template <class Fold, int kRows, int kVecs, class A>
void pairwise_kernel(const Fold& fold, const A* x, const A* y, int64_t depth, const Sums<A>& sums,
                     int64_t cols) {
  using Block = PairwiseBlock<A>;
  constexpr int n = simd::kLanes<A>;
  simd::Vec<A> sum[kRows][kVecs];
  const auto each = [&](auto body) __attribute__((always_inline)) {
    simd::unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      simd::unroll<kVecs>([&](auto v) __attribute__((always_inline)) { body(r, v, sum[r][v]); });
    });
  };
  each([&](int r, int v, auto& s) __attribute__((always_inline)) {
    s = sums.more ? simd::zero<A>() : fold.start(sums.i + r, sums.j + v * n, cols - v * n);
  });
  for (int64_t k = 0; k < depth; ++k, ++x, y += Block::kWidth) {
    each([&](int r, int v, auto& s) __attribute__((always_inline)) {
      s = fold.add(s, simd::load(y + v * n), x + r * Block::kStripWidth);
    });
  }
  // By way of memory: `finish` may call, and what lives in registers then would be kept in memory
  // in the loop above as well.
  alignas(64) A done[kRows][kVecs * n];
  each([&](int r, int v, auto& s)
           __attribute__((always_inline)) { simd::store(&done[r][v * n], s); });
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      A* to = sums.data + r * sums.width + v * n;
      const int64_t count = cols - v * n;
      auto s = simd::load(&done[r][v * n]);
      if (sums.more) s = fold.join(simd::load(to, count), s);
      if (sums.last) s = fold.finish(s, sums.i + r, sums.j + v * n, count);
      sums.stream ? simd::stream(to, s) : simd::store(to, s, count);
    }
  }
}

// A strip of x against all panels of y, in heights 12, 4, 2, 1 as far as there are rows.
template <class Fold, int kRows, class A>
void pairwise_strip(const Fold& fold, const A* x, int64_t rows, const A* y, int64_t depth,
                    Sums<A> sums, int64_t cols) {
  using Block = PairwiseBlock<A>;
  for (; rows >= kRows; rows -= kRows) {
    for (int64_t j = 0; j < cols; j += Block::kWidth) {
      const int64_t left = std::min(cols - j, Block::kWidth);
      Sums<A> at = sums.at(0, j);
      at.stream = sums.stream && left == Block::kWidth;
      const auto kernel = left > simd::kLanes<A> ? pairwise_kernel<Fold, kRows, 2, A>
                                                 : pairwise_kernel<Fold, kRows, 1, A>;
      kernel(fold, x, y + j * depth, depth, at, left);
    }
    x += kRows * Block::kStripWidth;
    sums = sums.at(kRows, 0);
  }
  if constexpr (kRows > 1) {
    pairwise_strip<Fold, (kRows > 4 ? 4 : kRows / 2)>(fold, x, rows, y, depth, sums, cols);
  }
}

// The depth in parts of about one length, at most kDepth.
template <class A>
int64_t depth_step(int64_t depth) {
  const int64_t parts = std::max<int64_t>(1, ceil_div(depth, PairwiseBlock<A>::kDepth));
  return std::max<int64_t>(1, ceil_div(depth, parts));
}

// y by panels of kWidth of its rows, each panel by k.
template <class A, class T>
void pack_panels(In<T, 2> y, A* to) {
  constexpr int64_t width = PairwiseBlock<A>::kWidth;
  for (int64_t j = 0; j < y.size(0); j += width) {
    pack(transpose(part(y, j, width, 0, y.size(1))), to + j * y.size(1), width);
  }
}

// y packed once for all blocks of the result: one part of k after the other, each in panels.
template <class A>
struct SharedPanels {
  const A* data;
  int64_t width;  // of all columns, padded

  explicit operator bool() const { return data != nullptr; }
  const A* at(int64_t j, int64_t k, int64_t depth) const { return data + k * width + j * depth; }
};

// One task: a block of the result, at column `col`. The sum over k goes in parts, added in order.
template <class Fold, class A, class T>
void pairwise_block(Device& dev, const Fold& fold, In<T, 2> x, In<T, 2> y, Out<T, 2> out,
                    bool stream, SharedPanels<A> shared, int64_t col) {
  using Block = PairwiseBlock<A>;
  const int64_t rows = out.size(0), cols = out.size(1), depth = x.size(1);
  const int64_t padded = round_up(cols, Block::kWidth);
  const int64_t step = depth_step<A>(depth);
  const bool direct = std::is_same_v<A, T> && out.stride(1) == 1;
  alignas(64) A strip[Block::kRows * Block::kStripWidth];
  Scratch<A, 4096> own(dev, shared ? 0 : padded * step);
  Scratch<A, 2048> packed(dev, direct ? 0 : rows * padded);
  Sums<A> sums{packed.data(), padded, 0, 0, false, false, false};
  if constexpr (std::is_same_v<A, T>) {
    if (direct) sums.data = out.data, sums.width = out.stride(0), sums.stream = stream;
  }
  for (int64_t k = 0; k == 0 || k < depth; k += step) {
    const int64_t part_depth = std::min(depth - k, step);
    if (!shared) pack_panels(part(y, 0, cols, k, part_depth), own.data());
    const A* panels = shared ? shared.at(col, k, part_depth) : own.data();
    sums.more = k > 0, sums.last = k + part_depth == depth;
    for (int64_t i = 0; i < rows; i += Block::kRows) {
      const auto x_part = part(x, i, Block::kRows, k, part_depth);
      pack(x_part, strip, Block::kStripWidth);
      pairwise_strip<Fold, Block::kRows>(fold, strip, x_part.size(0), panels, part_depth,
                                         sums.at(i, 0), cols);
    }
  }
  if (stream) simd::settle();
  if (!direct) unpack(sums.data, sums.width, out);
}

// How a result is cut into blocks of rows x cols, after a first column of blocks that has only
// `first` columns if the result is streamed: then all others start where a vector may be streamed
// to.
struct PairwiseCut {
  int64_t rows, cols, first;
  bool stream;

  int64_t across(int64_t m) const { return (first > 0) + ceil_div(m - first, cols); }
  int64_t start(int64_t c) const {
    return first == 0 || c == 0 ? c * cols : first + (c - 1) * cols;
  }
  int64_t width(int64_t c) const { return first > 0 && c == 0 ? first : cols; }
};

// A result beyond any cache is written past them: an ordinary store would read each line first.
// Zen4 EPYC, 2026-11: 58 became 67 G elements/s at 20000x20000x64.
constexpr int64_t kStreamBytes = int64_t{128} << 20;

// The columns before the first that starts a vector in memory; -1 if that differs between rows.
template <class T>
int64_t columns_to_vector(const View<T, 3>& out) {
  constexpr int64_t n = simd::kVectorBytes / static_cast<int64_t>(sizeof(T));
  if (out.stride(2) != 1 || out.stride(1) % n != 0 || out.stride(0) % n != 0) return -1;
  const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out.data) / sizeof(T)) % n;
  return past == 0 ? 0 : n - past;
}

// By the sizes alone, so that the blocks are the same for any number of threads. About 8 columns of
// blocks and 64 blocks, unless that makes them too small or too large.
template <class A, class T>
PairwiseCut cut_pairwise(const View<T, 3>& out, bool at_once) {
  using Block = PairwiseBlock<A>;
  const int64_t n_batch = out.size(0), n = out.size(1), m = out.size(2);
  PairwiseCut cut{0, 0, 0, false};
  cut.cols = std::clamp(round_up(n_batch * m / 8, Block::kWidth), Block::kWidth, Block::kCols);
  const bool packed = !std::is_same_v<A, T> || out.stride(2) != 1;
  const int64_t most = packed ? 128 : Block::kMaxRows;
  cut.rows = std::clamp<int64_t>(n_batch * n * ceil_div(m, cut.cols) / 64, 96, most);
  cut.rows = round_up(cut.rows, Block::kRows);
  const bool large = out.count() > kStreamBytes / static_cast<int64_t>(sizeof(T));
  const int64_t first = large && !packed && at_once ? columns_to_vector(out) : -1;
  if (first >= 0) cut.stream = true, cut.first = first;
  return cut;
}

// `fold_of(b, i, j)` is the formula of the block that starts there.
template <class FoldOf, class T>
void pairwise_fold(Device& dev, FoldOf fold_of, In<T, 3> x, In<T, 3> y, Out<T, 3> out) {
  using A = Accum<T>;
  const int64_t n_batch = out.size(0), n = out.size(1), m = out.size(2), depth = x.size(2);
  const int64_t step = depth_step<A>(depth);
  const auto cut = cut_pairwise<A>(out, depth <= step);
  const int64_t down = ceil_div(n, cut.rows), across = cut.across(m);
  const int64_t steps = n_batch * n * ceil_div(m, simd::kLanes<A>) * depth;
  // Where each part of y meets several blocks of x it is packed once, if it fits into the caches.
  constexpr int64_t kMost = (int64_t{8} << 20) / sizeof(A);
  const int64_t padded = round_up(m, PairwiseBlock<A>::kWidth);
  const bool share = down > 1 && cut.first == 0 && n_batch * padded * depth <= kMost;
  Scratch<A, 4096> panels(dev, share ? n_batch * padded * depth : 0);
  if (share) {
    parallel_if_large(dev, n_batch * across, steps, [&](int64_t task) {
      const int64_t b = task / across, j = task % across * cut.cols;
      for (int64_t k = 0; k < depth; k += step) {
        const int64_t part_depth = std::min(depth - k, step);
        A* to = panels.data() + (b * depth + k) * padded + j * part_depth;
        pack_panels(part(at(y, b), j, cut.cols, k, part_depth), to);
      }
    });
  }
  parallel_if_large(dev, n_batch * down * across, steps, [&](int64_t task) {
    const int64_t b = task / (down * across), c = task % across;
    const int64_t i = task / across % down * cut.rows, j = cut.start(c), cols = cut.width(c);
    const A* shared = share ? panels.data() + b * depth * padded : nullptr;
    pairwise_block<decltype(fold_of(b, i, j)), A>(
        dev, fold_of(b, i, j), part(at(x, b), i, cut.rows, 0, depth),
        part(at(y, b), j, cols, 0, depth), part(at(out, b), i, cut.rows, j, cols), cut.stream,
        SharedPanels<A>{shared, padded}, j);
  });
}

}  // namespace nativeops::tuned
