// SPDX-License-Identifier: Apache-2.0
// A few rows times a matrix as it lies: to copy it would take longer than the product.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/cpu/matrix_blocks.h"
#if NATIVEOPS_LEVEL > 0
#include "nativeops/devices/cpu/dots.h"

namespace nativeops::matrix_product {

constexpr int64_t kFewRows = 20;

// Whether a matrix can be read as it lies: its numbers, or its columns as words of two bf16.
template <class A, class Of>
bool lies_ready(const Matrix& m) {
  if constexpr (Of::kPerWord == 1) {
    return m.dtype.bits == 8 * sizeof(A) && (m.stride[0] == 1 || m.stride[1] == 1);
  }
#if NATIVEOPS_LEVEL >= 2
  return m.stride[0] == 1 && m.size[0] % 2 == 0 && simd::has_pairs();
#else
  return false;
#endif
}

// Rows of words, each up to a whole vector.
template <class A, class Of, class T>
void copy_rows(const View<T, 2>& from, A* to, int64_t width) {
  constexpr int64_t n = kLanes<A>;
  for (int64_t r = 0; r < from.size(0); ++r, to += width) {
    for (int64_t k = 0; k < width * Of::kPerWord; k += n) {
      const T* some = from.data + r * from.stride(0) + k * from.stride(1);
      const int64_t left = std::max<int64_t>(0, from.size(1) - k);
      const simd::Vec<A> numbers = tuned::load_apart(from.stride(1), some, left);
      if constexpr (Of::kPerWord == 1) {
        simd::store(to + k, numbers);
      } else {
        simd::store_halves(reinterpret_cast<bf16*>(to) + k, numbers);
      }
    }
  }
}

// c = alpha·a·b + beta·c where a has few rows, and b lies ready.
template <class Of, class A>
void multiply_few_rows(Device& dev, const Matrix& a, const Matrix& b, const Matrix& c,
                       Scaled<A> scaled) {
  using T = std::conditional_t<Of::kPerWord == 1, A, bf16>;
  constexpr int64_t kSome = 256;  // columns of a task
  const int64_t height = c.size[0], depth = Of::words(a.size[1]);
  const int64_t width = round_up(depth, kLanes<A>);
  const Workspace<A> rows = dev.workspace<A>(height * width);
  with_numbers<A>(a, [&](const auto& view) { copy_rows<A, Of>(view, rows.data(), width); });
  const A* row[kFewRows];
  for (int64_t r = 0; r < height; ++r) row[r] = rows.data() + r * width;

  const int64_t tasks = ceil_div(c.size[1], kSome);
  parallel_if_large(dev, tasks, height * c.size[1] * width / kLanes<A>, [&](int64_t task) {
    alignas(64) A sums[kFewRows * kSome];
    const Range columns{task * kSome, std::min((task + 1) * kSome, c.size[1])};
    const T* first = static_cast<const T*>(b.data) + columns.begin * b.stride[1];
    if (b.stride[0] == 1) {
      tuned::dots<Of>(row, height, first, b.stride[1], columns.count(), depth, sums, kSome);
    } else if constexpr (Of::kPerWord == 1) {
      std::fill_n(sums, height * kSome, A(0));
      tuned::add_rows(row, height, 0, depth, first, b.stride[0], columns.count(), sums, kSome);
    }
    put(c, {0, height}, columns, sums, kSome, scaled);
  });
}

}  // namespace nativeops::matrix_product
#endif
