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

template <class T, int N>
std::string sizes(const View<T, N>& view) {
  std::string text = "[";
  for (int axis = 0; axis < N; ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(view.size(axis));
  }
  return text + "]";
}

// Views that do not fit are a mistake of the kernel.
template <class Ta, class Tb, class T, int N>
void check_sizes(const View<Ta, N>& a, const View<Tb, N>& b, const View<T, N>& c) {
  bool fits = a.size(N - 1) == b.size(N - 2) && c.size(N - 2) == a.size(N - 2) &&
              c.size(N - 1) == b.size(N - 1);
  if (N == 3) fits = fits && a.size(0) == c.size(0) && b.size(0) == c.size(0);
  if (fits) return;
  throw std::runtime_error("gemm: c" + sizes(c) + " is not the product of a" + sizes(a) + " and b" +
                           sizes(b) + ".");
}

// A matrix as a batch of one.
template <class T>
View<T, 3> one(const View<T, 2>& m) {
  return {m.data, {1, m.size(0), m.size(1)}, {0, m.stride(0), m.stride(1)}};
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
