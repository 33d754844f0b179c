// SPDX-License-Identifier: Apache-2.0
// Inputs that may be absent. Declared in absent.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// How many of `all` steps sequence b has.
template <class I>
HOST_DEVICE int64_t steps_of(In<I, 2> lengths, int64_t n, int64_t b, int64_t all) {
  return lengths ? max2(int64_t{0}, min2(int64_t(lengths(n, b)), all)) : all;
}

// out[b,d] = Σ_t x[b,t,d] · weight[t] for t < lengths[b]
template <class T, class I>
void pool(Device& dev, In<T, 4> x, In<I, 2> lengths, In<T, 2> weight, Out<T, 3> out) {
  using A = Accum<T>;
  for_each(dev, out, [=] KERNEL(int64_t n, int64_t b, int64_t d) {
    const int64_t steps = steps_of(lengths, n, b, x.size(2));
    A sum = 0;
    for (int64_t t = 0; t < steps; ++t) {
      sum += A(x(n, b, t, d)) * (weight ? A(weight(n, t)) : A(1));
    }
    out(n, b, d) = T(sum);
  });
}

// d_x[b,t,d] = d_out[b,d] · weight[t], d_weight[t] = Σ_bd d_out[b,d] · x[b,t,d]
template <class T, class I>
void pool_grad(Device& dev, In<T, 4> x, In<T, 3> d_out, In<I, 2> lengths, In<T, 2> weight,
               Out<T, 4> d_x, Out<T, 2> d_weight) {
  using A = Accum<T>;
  if (d_x) {
    for_each(dev, d_x, [=] KERNEL(int64_t n, int64_t b, int64_t t, int64_t d) {
      const A factor = weight ? A(weight(n, t)) : A(1);
      d_x(n, b, t, d) =
          t < steps_of(lengths, n, b, x.size(2)) ? T(A(d_out(n, b, d)) * factor) : T(0);
    });
  }
  if (d_weight) {
    for_each(dev, d_weight, [=] KERNEL(int64_t n, int64_t t) {
      A sum = 0;
      for (int64_t b = 0; b < x.size(1); ++b) {
        if (t >= steps_of(lengths, n, b, x.size(2))) continue;
        for (int64_t d = 0; d < x.size(3); ++d) sum += A(d_out(n, b, d)) * A(x(n, b, t, d));
      }
      d_weight(n, t) = T(sum);
    });
  }
}

// out[d] = x[d] + bias[d] + Σ_k matrix[d,k]
template <class T>
void project(Device& dev, In<T, 2> x, In<T, 2> bias, In<T, 3> matrix, Out<T, 2> out) {
  using A = Accum<T>;
  for_each(dev, out, [=] KERNEL(int64_t n, int64_t d) {
    A sum = A(x(n, d)) + (bias ? A(bias(n, d)) : A(0));
    for (int64_t k = 0; k < matrix.size(2); ++k) sum += A(matrix(n, d, k));
    out(n, d) = T(sum);
  });
}

// d_x[d] = d_bias[d] = d_matrix[d,k] = d_out[d]
template <class T>
void project_grad(Device& dev, In<T, 2> d_out, In<T, 3>, Out<T, 2> d_x, Out<T, 2> d_bias,
                  Out<T, 3> d_matrix) {
  if (d_x) for_each(dev, d_x, [=] KERNEL(int64_t n, int64_t d) { d_x(n, d) = d_out(n, d); });
  if (d_bias)
    for_each(dev, d_bias, [=] KERNEL(int64_t n, int64_t d) { d_bias(n, d) = d_out(n, d); });
  if (d_matrix) {
    for_each(dev, d_matrix,
             [=] KERNEL(int64_t n, int64_t d, int64_t k) { d_matrix(n, d, k) = d_out(n, d); });
  }
}

// out[n,m] = x[n] · y[m]
template <class T>
void outer(Device& dev, In<T, 1> x, In<T, 1> y, Out<T, 2> out) {
  for_each(dev, out,
           [=] KERNEL(int64_t n, int64_t m) { out(n, m) = T(Accum<T>(x(n)) * Accum<T>(y(m))); });
}

}  // namespace nativeops
