// SPDX-License-Identifier: Apache-2.0
// What the products of matrices of all devices share; the word for kernels is in gemm.h.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "nativeops/devices/kernel.h"
#include "nativeops/devices/operand.h"

namespace nativeops {
namespace matrix_product {

inline std::string size_text(const int64_t* sizes, int axes) {
  std::string text = "[";
  for (int axis = 0; axis < axes; ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(sizes[axis]);
  }
  return text + "]";
}

// Sizes of matrices, or of batches of them, that do not fit are a mistake of the kernel.
inline void check_sizes(const int64_t* a, const int64_t* b, const int64_t* c, int axes) {
  const int row = axes - 2, col = axes - 1;
  bool fits = a[col] == b[row] && c[row] == a[row] && c[col] == b[col];
  if (axes == 3) fits = fits && a[0] == c[0] && b[0] == c[0];
  if (fits) return;
  throw std::runtime_error("gemm: c" + size_text(c, axes) + " is not the product of a" +
                           size_text(a, axes) + " and b" + size_text(b, axes) + ".");
}

// alpha·sum + beta·c. What was in c does not count where beta is 0, even if it is NaN.
template <class A>
struct Scaled : Plus {
  A alpha, beta;

  HOST_DEVICE A finish(A sum, A before) const {
    return beta == A(0) ? alpha * sum : alpha * sum + beta * before;
  }
};

// By the loop shape that every device has.
template <class Ta, class Tb, class T>
void by_contract(Device& dev, View<Ta, 3> a, View<Tb, 3> b, View<T, 3> c, Scaled<Accum<T>> scaled) {
  using A = Accum<T>;
  contract(dev, c, a, b, c, [] KERNEL(A x, A y, A) { return x * y; }, scaled);
}

// c = beta·c, the product with nothing between.
template <class T>
void scale(Device& dev, Out<T, 3> c, Accum<T> beta) {
  using A = Accum<T>;
  for_each(dev, c, [=] KERNEL(int64_t n, int64_t i, int64_t j) {
    c(n, i, j) = beta == A(0) ? T(A(0)) : T(beta * A(c(n, i, j)));
  });
}

}  // namespace matrix_product
}  // namespace nativeops
