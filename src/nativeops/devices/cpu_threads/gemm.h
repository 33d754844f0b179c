// SPDX-License-Identifier: Apache-2.0
// gemm on the CPU with many threads in a block.
#pragma once
#include "nativeops/devices/cpu_threads/block.h"
#include "nativeops/devices/product.h"

namespace nativeops::matrix_product {

template <class Ta, class Tb, class T>
void multiply(Device& dev, In<Ta, 3> a, In<Tb, 3> b, Out<T, 3> c, Scaled<Accum<T>> scaled) {
  by_contract(dev, a, b, c, scaled);
}

}  // namespace nativeops::matrix_product
