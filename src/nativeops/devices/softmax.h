// SPDX-License-Identifier: Apache-2.0
// What the softmax of a row is made of, by a team.
#pragma once
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/logarithm.h"

namespace nativeops {

template <class T>
KERNEL SoftmaxSums<Accum<T>> softmax_sums(Team team, const In<T, 1>& row) {
  using A = Accum<T>;
  const int64_t n = row.size(0);
  const A largest = team.max(0, n, [=](int64_t i) { return A(row(i)); });
  const A shift = largest == lowest<A>() ? A(0) : largest;
  return {largest, team.sum(0, n, [=](int64_t i) { return exp(A(row(i)) - shift); })};
}

}  // namespace nativeops
