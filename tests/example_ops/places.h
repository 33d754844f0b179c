// SPDX-License-Identifier: Apache-2.0
// Results that may lie where an input lies. Declared in places.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[i] = x[i] · y[i]
template <class T>
void gate(Device& dev, In<T, 2> x, In<T, 2> y, Out<T, 2> out) {
  using A = Accum<T>;
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) { out(b, i) = T(A(x(b, i)) * A(y(b, i))); });
}

// total[t] = Σ_s x[s]² / 2 for s <= t; x[t] is read before total[t] is written
template <class T>
void running(Device& dev, In<T, 3> x, Out<T, 3> total, Out<T, 2> first) {
  using A = Accum<T>;
  Out<T, 2> rows;  // as many as x has, without the steps
  rows.data = nullptr;
  for (int axis = 0; axis < 2; ++axis) rows.size_[axis] = x.size(2 * axis), rows.stride_[axis] = 0;
  for_each(dev, rows, [=] KERNEL(int64_t b, int64_t d) {
    A sum = 0;
    if (first) first(b, d) = x.size(1) > 0 ? x(b, 0, d) : T(0);
    for (int64_t t = 0; t < x.size(1); ++t) {
      const A value = A(x(b, t, d));
      sum += value * value / 2;
      total(b, t, d) = T(sum);
    }
  });
}

// d_x[s] = x[s] · Σ_t d_total[t] for t >= s
template <class T>
void running_grad(Device& dev, In<T, 3> x, In<T, 3> d_total, Out<T, 3> d_x) {
  using A = Accum<T>;
  for_each(dev, d_x, [=] KERNEL(int64_t b, int64_t s, int64_t d) {
    A sum = 0;
    for (int64_t t = s; t < x.size(1); ++t) sum += A(d_total(b, t, d));
    d_x(b, s, d) = T(A(x(b, s, d)) * sum);
  });
}

}  // namespace nativeops
