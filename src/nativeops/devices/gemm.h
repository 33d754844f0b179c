// SPDX-License-Identifier: Apache-2.0
// gemm: products of matrices from the host side of a kernel, one word on every device. Each device
// says how, as matrix_product::multiply.
#pragma once
#include <type_traits>

#include "nativeops/devices/kernel.h"
#include "nativeops/devices/product.h"

#if defined(__CUDACC__)
#include "nativeops/devices/cuda/gemm.h"
#elif defined(NATIVEOPS_CPU_THREADS)
#include "nativeops/devices/cpu_threads/gemm.h"
#else
#include "nativeops/devices/cpu/gemm.h"
#endif

namespace nativeops {

// c = alpha·a·b + beta·c for batches of matrices. The views may have any strides, so transpose(a)
// is the product with the transposed matrix, and a batch stride of 0 the same matrix for all. c
// must overlap neither a nor b. bf16 and f16 are summed up in float; dtypes may be mixed, which
// costs copies on CUDA.
template <class Ta, class Tb, class T>
void gemm(Device& dev, View<Ta, 3> a, View<Tb, 3> b, View<T, 3> c, double alpha = 1,
          double beta = 0) {
  using A = Accum<T>;
  matrix_product::check_sizes(a.size_, b.size_, c.size_, 3);
  if (c.count() == 0) return;
  const matrix_product::Scaled<A> scaled{{}, static_cast<A>(alpha), static_cast<A>(beta)};
  if (a.size(2) == 0 || scaled.alpha == A(0)) return matrix_product::scale(dev, c, scaled.beta);
  matrix_product::multiply<std::remove_const_t<Ta>, std::remove_const_t<Tb>, T>(dev, a, b, c,
                                                                                scaled);
}
// For single matrices:
//   gemm(dev, x, transpose(w), out);
template <class Ta, class Tb, class T>
void gemm(Device& dev, View<Ta, 2> a, View<Tb, 2> b, View<T, 2> c, double alpha = 1,
          double beta = 0) {
  matrix_product::check_sizes(a.size_, b.size_, c.size_, 2);
  gemm(dev, batch_of_one(a), batch_of_one(b), batch_of_one(c), alpha, beta);
}

}  // namespace nativeops
