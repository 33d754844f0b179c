// SPDX-License-Identifier: Apache-2.0
// Sums over rows with many threads: each column has a thread, in many parts of the rows.
#pragma once
#include <cstdint>

#include "nativeops/devices/blocks/team.h"

namespace nativeops {

// How many rows suit a team that adds up what belongs to the columns, one row after another: few,
// so that there are many teams.
constexpr int64_t kPartRows = 8;

// The rows of a view in as many parts as a block has warps; each warp has 32 columns of a part.
template <class A, class T>
struct AddRowsKernel {
  static constexpr int kParts = kBlockThreads / 8;

  View<A, 2> rows;
  View<T, 1> to;

  KERNEL void operator()() const {
    SHARED A sums[kParts][32];
    const int part = static_cast<int>(threadIdx.y), column = static_cast<int>(threadIdx.x);
    const int64_t n = rows.size(0), low = part * n / kParts, high = (part + 1) * n / kParts;
    NATIVEOPS_ROLLED
    for (int64_t first = int64_t{blockIdx.x} * 32; first < to.size(0);
         first += int64_t{gridDim.x} * 32) {
      const int64_t k = first + column;
      A sum(0);
      if (k < to.size(0)) {
        in_batches(
            low, high, 1, [&](int64_t i) { return rows(i, k); },
            [&](int64_t, A value) { sum += value; });
      }
      sums[part][column] = sum;
      sync();
      if (part == 0 && k < to.size(0)) {
        for (int p = 1; p < kParts; ++p) sum += sums[p][column];
        to(k) = T(sum);
      }
      sync();  // the next columns use the same memory
    }
  }
};

// to[k] = Σ_i rows[i, k]; rows may be used up.
template <class A, class T>
void add_rows(Device& dev, View<A, 2> rows, View<T, 1> to) {
  using Kernel = AddRowsKernel<A, T>;
  const unsigned grid = static_cast<unsigned>(min2(ceil_div(to.size(0), 32), kMaxGrid));
  launch(dev, grid, Dim3(32, Kernel::kParts), Kernel{rows, to});
}

// to[k] = Σ_i f(i, k) over 0 <= i < rows: in parts of some rows, that are added in order in the
// end. f may write results of its own at (i, k).
template <class T, class F>
void sum_rows(Device& dev, int64_t rows, View<T, 1> to, F f) {
  using A = Accum<T>;
  constexpr int64_t kLeast = 4, kMost = 32, kMostParts = 2048, kManyThreads = 1 << 19;
  const int64_t n = to.size(0), fitting = min2(kMost, rows * n / kManyThreads);
  const int64_t some = max2(max2(kLeast, fitting), rows / kMostParts);  // rows of a part
  const int64_t parts = ceil_div(rows, some), strips = ceil_div(n, kBlockThreads);
  auto memory = dev.template workspace<A>(parts * n);
  const View<A, 2> sums = dense(memory.data(), parts, n);
  const auto add = [=] KERNEL(Team team, int64_t item) {
    const Divided at = divide(item, strips);
    const int64_t first = at.rest * kBlockThreads, low = at.whole * some;
    const View<A, 1> part{&sums(at.whole, first), {min2<int64_t>(kBlockThreads, n - first)}, {1}};
    team.sums(part, low, min2(rows, low + some),
              [&](int64_t i, int64_t k) { return f(i, first + k); });
  };
  for_each_item(dev, parts * strips, add, n);
  add_rows(dev, sums, to);
}

}  // namespace nativeops
