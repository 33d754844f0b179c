// SPDX-License-Identifier: Apache-2.0
// Parts of matrices, for the host side of a kernel.
#pragma once
#include "nativeops/devices/view.h"

namespace nativeops {

// Columns [first, first + count) of a matrix, and rows of it.
template <class T>
HOST_DEVICE View<T, 2> columns(View<T, 2> m, int64_t first, int64_t count) {
  return {m.data + first * m.stride(1), {m.size(0), count}, {m.stride(0), m.stride(1)}};
}
template <class T>
HOST_DEVICE View<T, 2> rows(View<T, 2> m, int64_t first, int64_t count) {
  return {m.data + first * m.stride(0), {count, m.size(1)}, {m.stride(0), m.stride(1)}};
}

}  // namespace nativeops
