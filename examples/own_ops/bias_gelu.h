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
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    const A s = A(x(b, i)) + A(bias(i));
    out(b, i) = T(s * normal_share(s));
  });
}

// d_x[i] = d_out[i] (Φ(s) + s Φ'(s)) with Φ'(s) = e^(-s^2 / 2) / √(2π); d_bias is its sum over
// rows.
//
// A team has 32 rows, and each of its threads some of the columns: it writes d_x and adds up its
// part of d_bias in one pass. The parts are added in order, so that the sum is always the same.
template <class T>
void bias_gelu_grad(Device& dev, In<T, 2> x, In<T, 1> bias, In<T, 2> d_out, Out<T, 2> d_x,
                    Out<T, 1> d_bias) {
  using A = Accum<T>;
  constexpr int64_t kRows = 32;
  const int64_t rows = x.size(0), n = x.size(1), parts = 1 + rows / kRows;
  auto memory = dev.workspace<A>(parts * n);
  const View<A, 2> sums = dense(memory.data(), parts, n);
  for_each_item(dev, parts, [=] KERNEL(Team team, int64_t part) {
    team.each(0, n, [=](int64_t i) { sums(part, i) = 0; });
    const int64_t first = part * kRows, last = min2(rows, first + kRows);
    for (int64_t b = first; b < last; ++b) {
      team.each(0, n, [=](int64_t i) {
        const A s = A(x(b, i)) + A(bias(i));
        const A slope = normal_share(s) + s * exp(A(-0.5) * s * s) * A(0.39894228040143268);
        const A d = A(d_out(b, i)) * slope;
        sums(part, i) += d;
        d_x(b, i) = T(d);
      });
    }
  });
  for_each_item(dev, (n + 255) / 256, [=] KERNEL(Team team, int64_t strip) {
    const int64_t first = strip * 256, last = min2(n, first + 256);
    for (int64_t part = 1; part < parts; ++part) {
      team.each(first, last, [=](int64_t i) { sums(0, i) += sums(part, i); });
    }
    team.each(first, last, [=](int64_t i) { d_bias(i) = T(sums(0, i)); });
  });
}

}  // namespace nativeops
