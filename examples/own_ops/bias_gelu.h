// SPDX-License-Identifier: Apache-2.0
// GELU of a sum with a bias, and its gradient. Declared in bias_gelu.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// Φ(s) = (1 + erf(s / √2)) / 2, the share of a normal distribution below s
template <class A>
KERNEL A normal_share(A s) {
  return A(0.5) + A(0.5) * erf(s * A(0.70710678118654752));
}

// out[i] = s Φ(s) with s = x[i] + bias[i]
template <class T>
void bias_gelu(Device& dev, In<T, 2> x, In<T, 1> bias, Out<T, 2> out) {
  using A = Accum<T>;
  fill(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    const A s = A(x(b, i)) + A(bias(i));
    return s * normal_share(s);
  });
}

// d_x[i] = d_out[i] (Φ(s) + s Φ'(s)) with Φ'(s) = e^(-s^2 / 2) / √(2π); d_bias is its sum over
// rows, in one pass with it.
template <class T>
void bias_gelu_grad(Device& dev, In<T, 2> x, In<T, 1> bias, In<T, 2> d_out, Out<T, 2> d_x,
                    Out<T, 1> d_bias) {
  using A = Accum<T>;
  sum_rows(dev, x.size(0), d_bias, [=] KERNEL(int64_t b, int64_t i) {
    const A s = A(x(b, i)) + A(bias(i)), arrived = A(d_out(b, i));
    const A slope = normal_share(s) + s * exp(A(-0.5) * s * s) * A(0.39894228040143268);
    const A d = arrived * slope;
    d_x(b, i) = T(d);
    return d;
  });
}

}  // namespace nativeops
