// SPDX-License-Identifier: Apache-2.0
// for_each with many threads. Each has some elements of one row, so that what depends on the row is
// computed once for all of them: an index of a row is a division of a hundred instructions.
#pragma once
#include <cstdint>

#include "nativeops/devices/blocks/reduce.h"
#include "nativeops/devices/view.h"

namespace nativeops {

// Who has which elements of a view of N axes: `lanes` threads lie side by side along its rows, all
// axes but the last together, and each takes every `lanes`-th element of a strip of the row.
template <int N>
struct RowWalk {
  int64_t size[N], rows, strips, width;  // of a strip
  int lanes, shift, rows_of_block;

  template <class T>
  explicit RowWalk(View<T, N> view) : rows(1) {
    constexpr int64_t kManyThreads = 1 << 19;  // twice as many as a large GPU runs at a time
    constexpr int64_t kMostTurns = 8, kMostStrips = 65535;
    constexpr int kSide = 32, kLine = 8;
    for (int axis = 0; axis < N; ++axis) size[axis] = view.size(axis);
    for (int axis = 0; axis + 1 < N; ++axis) rows *= size[axis];
    const int64_t length = size[N - 1];
    const auto turns = [&] { return ceil_div(length, lanes); };
    int64_t most = max2<int64_t>(1, min2(kMostTurns, rows * length / kManyThreads));
    lanes = kBlockThreads;
    while (lanes > kSide && lanes * most > length) lanes /= 2;
    while (lanes > kLine && (turns() * lanes - length) * 8 > length) lanes /= 2;  // few are idle
    while (lanes > 1 && lanes / 2 >= length) lanes /= 2;
    most = max2(most, ceil_div(turns(), kMostStrips));
    width = most * lanes;
    strips = ceil_div(length, width);
    rows_of_block = kBlockThreads / lanes;
    for (shift = 0; 1 << shift < lanes;) ++shift;
  }

  // x: so many rows each; y: the strips.
  Dim3 grid() const {
    return Dim3(static_cast<unsigned>(min2(ceil_div(rows, rows_of_block), kMaxGrid)),
                static_cast<unsigned>(min2(strips, kMaxGrid)));
  }

  // body(first, last, at) for the elements first, first + lanes, .. below last of a row of this
  // thread: at(g, j) calls g(.., j) with the indices of the row.
  template <class Body>
  KERNEL void each(Body body) const {
    constexpr bool kHasAll = kMaxGrid > 65535;  // a grid on a GPU: no thread has a second strip
    const int thread = static_cast<int>(threadIdx.x), lane = thread & (lanes - 1);
    int64_t row = int64_t{blockIdx.x} * rows_of_block + (thread >> shift);
    for (; row < rows; row += int64_t{gridDim.x} * rows_of_block) {
      for (int64_t strip = blockIdx.y; strip < strips; strip += gridDim.y) {
        in_row(row, strip * width + lane, min2(size[N - 1], (strip + 1) * width), body);
        if (kHasAll) return;
      }
      if (kHasAll) return;
    }
  }

 private:
  template <class Body>
  KERNEL void in_row(int64_t row, int64_t first, int64_t last, Body body) const {
    if constexpr (N == 1) {
      body(first, last, [](const auto& g, int64_t j) -> decltype(auto) { return g(j); });
    } else if constexpr (N == 2) {
      body(first, last, [row](const auto& g, int64_t j) -> decltype(auto) { return g(row, j); });
    } else if constexpr (N == 3) {
      const Divided b = divide(row, size[1]);
      body(first, last,
           [b](const auto& g, int64_t j) -> decltype(auto) { return g(b.whole, b.rest, j); });
    } else {
      const Divided c = divide(row, size[2]), b = divide(c.whole, size[1]);
      body(first, last, [b, c](const auto& g, int64_t j) -> decltype(auto) {
        return g(b.whole, b.rest, c.rest, j);
      });
    }
  }
};

template <int N, class F>
struct ForEachKernel {
  F f;
  RowWalk<N> walk;

  KERNEL void operator()() const {
    walk.each([this](int64_t first, int64_t last, auto at) {
      NATIVEOPS_ROLLED
      for (int64_t j = first; j < last; j += walk.lanes) at(f, j);
    });
  }
};

// f(i, j, ..) once for every index of the view, in any order and in parallel: f must not read what
// it writes at another index. `cost` matters on the CPU only.
template <class T, int N, class F>
void for_each(Device& dev, View<T, N> view, F f, int64_t /*cost*/ = 1) {
  static_assert(N >= 1 && N <= 4, "for_each takes views of one to four axes");
  if (view.count() == 0) return;
  const ForEachKernel<N, F> kernel{f, RowWalk<N>(view)};
  launch(dev, kernel.walk.grid(), kBlockThreads, kernel);
}

template <class T, int N, class F>
struct FillKernel {
  View<T, N> to;
  F f;
  RowWalk<N> walk;

  KERNEL void operator()() const {
    walk.each([this](int64_t first, int64_t last, auto at) {
      in_batches(
          first, last, walk.lanes, [&](int64_t j) { return T(at(f, j)); },
          [&](int64_t j, T value) { at(to, j) = value; });
    });
  }
};

// view(i, j, ..) = f(i, j, ..) for every index, as for_each: several values are computed before one
// is written.
template <class T, int N, class F>
void fill(Device& dev, View<T, N> view, F f, int64_t /*cost*/ = 1) {
  static_assert(N >= 1 && N <= 4, "fill takes views of one to four axes");
  if (view.count() == 0) return;
  const FillKernel<T, N, F> kernel{view, f, RowWalk<N>(view)};
  launch(dev, kernel.walk.grid(), kBlockThreads, kernel);
}

}  // namespace nativeops
