// SPDX-License-Identifier: Apache-2.0
// Cross entropy against sparse targets, with vectors. Declared in sparse_cross_entropy.py.
#pragma once
#include "nativeops/devices/cpu/softmax.h"
#include "nativeops/ops/sparse_cpu.h"
#include "nativeops/ops/sparse_cross_entropy.h"

namespace nativeops::tuned {

// As nativeops::TeamRows, where the labels of a frame lie side by side.
struct VectorRows {
  template <class I>
  static void check(Device& dev, const Entries<I>& entries) {
    check_entries(dev, entries);
  }
  template <class T, class A>
  static SoftmaxSums<A> exponentials(Team team, const In<T, 3>& z, int64_t t, int64_t b,
                                     const Out<A, 1>& p) {
    if (z.stride(2) == 1 || z.size(2) == 1) {
      const auto row =
          simd::softmax_sums(&z(t, b, 0), z.size(2),
                             [&](int64_t k, const auto& e, int64_t n)
                                 __attribute__((always_inline)) { store(p.data + k, e, n); });
      if (row.sum > 0) return row;
    }
    return TeamRows::exponentials(team, z, t, b, p);  // also of NaN, and of nothing but -infinity
  }
};

template <class T, class I>
constexpr auto cross_entropy_softmax_and_gradient_sparse =
    nativeops::cross_entropy_softmax_and_gradient_sparse<T, I, VectorRows>;
template <class T, class I>
constexpr auto cross_entropy_softmax_and_gradient_sparse_grad =
    nativeops::cross_entropy_softmax_and_gradient_sparse_grad<T, I, VectorRows>;

}  // namespace nativeops::tuned
