// SPDX-License-Identifier: Apache-2.0
// for_each with many threads: a stride over all elements, the last axis fastest.
#pragma once
#include <cstdint>

#include "nativeops/devices/blocks/reduce.h"
#include "nativeops/devices/view.h"

namespace nativeops {

template <int N, class F>
struct ForEachKernel {
  F f;
  int64_t total, size[N];

  KERNEL void operator()() const {
    for (int64_t i : range(total)) {
      if constexpr (N == 1) {
        f(i);
      } else if constexpr (N == 2) {
        const Divided row = divide(i, size[1]);
        f(row.whole, row.rest);
      } else if constexpr (N == 3) {
        const Divided row = divide(i, size[2]), first = divide(row.whole, size[1]);
        f(first.whole, first.rest, row.rest);
      } else {
        const Divided row = divide(i, size[3]), next = divide(row.whole, size[2]);
        const Divided first = divide(next.whole, size[1]);
        f(first.whole, first.rest, next.rest, row.rest);
      }
    }
  }
};

// f(i, j, ..) once for every index of the view, in any order and in parallel: f must not read what
// it writes at another index. `cost` matters on the CPU only.
template <class T, int N, class F>
void for_each(Device& dev, View<T, N> view, F f, int64_t /*cost*/ = 1) {
  static_assert(N >= 1 && N <= 4, "for_each takes views of one to four axes");
  ForEachKernel<N, F> kernel{f, view.count(), {}};
  for (int axis = 0; axis < N; ++axis) kernel.size[axis] = view.size(axis);
  launch(dev, grid_for(kernel.total), kBlockThreads, kernel);
}

}  // namespace nativeops
