// SPDX-License-Identifier: Apache-2.0
// Whether an array's numbers lie one beside the other, the last axis fastest.
#pragma once
#include <cstdint>

#include "nativeops/devices/view.h"

namespace nativeops::tuned {

template <class T, int N>
bool is_dense(const View<T, N>& array) {
  int64_t stride = 1;
  for (int axis = N - 1; axis >= 0; --axis) {
    if (array.stride(axis) != stride) return false;
    stride *= array.size(axis);
  }
  return true;
}

}  // namespace nativeops::tuned
