// SPDX-License-Identifier: Apache-2.0
// A few rows times a matrix as it lies: to copy it would take longer than the product.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nativeops/devices/cpu/matrix_blocks.h"
#if NATIVEOPS_LEVEL > 0
#include "nativeops/devices/cpu/dots.h"
#endif

namespace nativeops::matrix_product {

#if NATIVEOPS_LEVEL > 0
constexpr int64_t kFewRows = 12;

template <class A>
bool lies_ready(const Matrix& m) {
  return m.dtype.bits == 8 * sizeof(A) && (m.stride[0] == 1 || m.stride[1] == 1);
}

// c = alpha·a·b + beta·c where a has few rows, and b lies ready.
template <class A>
void multiply_few_rows(Device& dev, const Matrix& a, const Matrix& b, const Matrix& c,
                       Scaled<A> scaled) {
  constexpr int64_t kSome = 256;  // columns of a task
  const int64_t height = c.size[0], depth = a.size[1], width = round_up(depth, kLanes<A>);
  const Workspace<A> rows = dev.workspace<A>(height * width);
  with_numbers<A>(a, [&](const auto& view) {
    copy_part<A>(part(view, {0, height}, {0, depth}), rows.data(), width);
  });
  const A* row[kFewRows];
  for (int64_t r = 0; r < height; ++r) row[r] = rows.data() + r * width;

  const int64_t tasks = ceil_div(c.size[1], kSome);
  parallel_if_large(dev, tasks, height * c.size[1] * width / kLanes<A>, [&](int64_t task) {
    alignas(64) A sums[kFewRows * kSome];
    const Range columns{task * kSome, std::min((task + 1) * kSome, c.size[1])};
    const A* first = static_cast<const A*>(b.data) + columns.begin * b.stride[1];
    if (b.stride[0] == 1) {
      tuned::dots<tuned::Numbers>(row, height, first, b.stride[1], columns.count(), depth, sums,
                                  kSome);
    } else {
      std::fill_n(sums, height * kSome, A(0));
      tuned::add_rows(row, height, 0, depth, first, b.stride[0], columns.count(), sums, kSome);
    }
    put(c, {0, height}, columns, sums, kSome, scaled);
  });
}
#endif

}  // namespace nativeops::matrix_product
