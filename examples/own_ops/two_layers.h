// SPDX-License-Identifier: Apache-2.0
// Two dense layers with a ReLU between, and their gradient. Declared in two_layers.py.
#pragma once
#include "nativeops/devices/gemm.h"

namespace nativeops {

// hidden = relu(x·w1ᵀ + b1), in the dtype of sums
template <class T>
void hidden_units(Device& dev, In<T, 2> x, In<T, 2> w1, In<T, 1> b1, Out<Accum<T>, 2> hidden) {
  using A = Accum<T>;
  gemm(dev, x, transpose(w1), hidden);
  for_each(dev, hidden, [=] KERNEL(int64_t n, int64_t j) {
    const A sum = hidden(n, j) + A(b1(j));
    hidden(n, j) = sum < 0 ? A(0) : sum;  // NaN stays NaN
  });
}

// y = hidden·w2ᵀ + b2
template <class T>
void two_layers(Device& dev, In<T, 2> x, In<T, 2> w1, In<T, 1> b1, In<T, 2> w2, In<T, 1> b2,
                Out<T, 2> out) {
  using A = Accum<T>;
  auto memory = dev.workspace<A>(x.size(0) * (w1.size(0) + out.size(1)));
  const auto hidden = dense(memory.data(), x.size(0), w1.size(0));
  const auto sums = dense(memory.data() + hidden.count(), out.size(0), out.size(1));
  hidden_units(dev, x, w1, b1, hidden);
  gemm(dev, hidden, transpose(w2), sums);
  for_each(dev, out, [=] KERNEL(int64_t n, int64_t j) { out(n, j) = T(sums(n, j) + A(b2(j))); });
}

// d_hidden = d_out·w2 where hidden > 0      d_w2 = d_outᵀ·hidden      d_x = d_hidden·w1
// d_w1 = d_hiddenᵀ·x      d_b1 = Σ_n d_hidden[n]      d_b2 = Σ_n d_out[n]
template <class T>
void two_layers_grad(Device& dev, In<T, 2> x, In<T, 2> w1, In<T, 1> b1, In<T, 2> w2, In<T, 2> d_out,
                     Out<T, 2> d_x, Out<T, 2> d_w1, Out<T, 1> d_b1, Out<T, 2> d_w2,
                     Out<T, 1> d_b2) {
  using A = Accum<T>;
  auto memory = dev.workspace<A>(2 * x.size(0) * w1.size(0));
  const auto hidden = dense(memory.data(), x.size(0), w1.size(0));
  const auto d_hidden = dense(memory.data() + hidden.count(), x.size(0), w1.size(0));
  hidden_units(dev, x, w1, b1, hidden);
  gemm(dev, d_out, w2, d_hidden);
  gemm(dev, transpose(d_out), hidden, d_w2);
  sum_rows(dev, x.size(0), d_b1, [=] KERNEL(int64_t n, int64_t j) {
    if (!(hidden(n, j) > 0)) d_hidden(n, j) = 0;
    return d_hidden(n, j);
  });
  gemm(dev, d_hidden, w1, d_x);
  gemm(dev, transpose(d_hidden), x, d_w1);
  sum_rows(dev, x.size(0), d_b2, [=] KERNEL(int64_t n, int64_t j) { return A(d_out(n, j)); });
}

}  // namespace nativeops
