// SPDX-License-Identifier: Apache-2.0
// Two dense layers with a ReLU between, and their gradient. Declared in two_layers.py.
#pragma once
#include "nativeops/devices/gemm.h"

namespace nativeops {

// hidden = relu(x·w1ᵀ + b1)      y = hidden·w2ᵀ + b2; `hidden` is there if a gradient needs it
template <class T>
void two_layers(Device& dev, In<T, 2> x, In<T, 2> w1, In<T, 1> b1, In<T, 2> w2, In<T, 1> b2,
                Out<T, 2> y, Out<Accum<T>, 2> hidden) {
  using A = Accum<T>;
  auto own_units = dev.workspace<A>(hidden ? 0 : x.size(0) * w1.size(0));
  auto own_sums = dev.workspace<A>(y.count());
  const auto units = hidden ? hidden : dense(own_units.data(), x.size(0), w1.size(0));
  const auto sums = dense(own_sums.data(), y.size(0), y.size(1));
  gemm(dev, x, transpose(w1), units);
  for_each(dev, units, [=] KERNEL(int64_t n, int64_t j) {
    const A sum = units(n, j) + A(b1(j));
    units(n, j) = sum < 0 ? A(0) : sum;  // NaN stays NaN
  });
  gemm(dev, units, transpose(w2), sums);
  for_each(dev, y, [=] KERNEL(int64_t n, int64_t j) { y(n, j) = T(sums(n, j) + A(b2(j))); });
}

// d_hidden = d_y·w2 where hidden > 0      d_w2 = d_yᵀ·hidden      d_x = d_hidden·w1
// d_w1 = d_hiddenᵀ·x      d_b1 = Σ_n d_hidden[n]      d_b2 = Σ_n d_y[n]
template <class T>
void two_layers_grad(Device& dev, In<T, 2> x, In<T, 2> w1, In<T, 2> w2, In<Accum<T>, 2> hidden,
                     In<T, 2> d_y, Out<T, 2> d_x, Out<T, 2> d_w1, Out<T, 1> d_b1, Out<T, 2> d_w2,
                     Out<T, 1> d_b2) {
  using A = Accum<T>;
  auto memory = dev.workspace<A>(hidden.count());
  const auto d_hidden = dense(memory.data(), hidden.size(0), hidden.size(1));
  gemm(dev, d_y, w2, d_hidden);
  gemm(dev, transpose(d_y), hidden, d_w2);
  sum_rows(dev, x.size(0), d_b1, [=] KERNEL(int64_t n, int64_t j) {
    if (!(hidden(n, j) > 0)) d_hidden(n, j) = 0;
    return d_hidden(n, j);
  });
  gemm(dev, d_hidden, w1, d_x);
  gemm(dev, transpose(d_hidden), x, d_w1);
  sum_rows(dev, x.size(0), d_b2, [=] KERNEL(int64_t n, int64_t j) { return A(d_y(n, j)); });
}

}  // namespace nativeops
