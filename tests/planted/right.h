// SPDX-License-Identifier: Apache-2.0
// Kernels without a bug. Declared in right.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

template <class T>
void running_sum(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each_item(dev, x.size(0), [=] KERNEL(Team team, int64_t b) {
    Accum<T> sum = 0;
    for (int64_t i = 0; team.rank() == 0 && i < x.size(1); ++i) {
      sum += Accum<T>(x(b, i));
      out(b, i) = T(sum);
    }
  });
}

template <class T>
void beyond_half_precision(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each(dev, out,
           [=] KERNEL(int64_t b, int64_t i) { out(b, i) = T(100000 * Accum<T>(x(b, i))); });
}

template <class T>
void scaled_rows(Device& dev, In<T, 2> x, Out<T, 2> out) {
  fill(dev, out, [=] KERNEL(int64_t n, int64_t k) { return 3 * Accum<T>(x(n, k)); });
}

template <class T>
void rotated(Device& dev, In<T, 2> x, In<T, 2> cos, In<T, 2> sin, Out<T, 2> out) {
  using A = Accum<T>;
  for_each_item(dev, x.size(0), [=] KERNEL(Team team, int64_t n) {
    team.each(0, cos.size(1), [=](int64_t k) {
      const A a = x(n, 2 * k), b = x(n, 2 * k + 1), c = cos(n, k), s = sin(n, k);
      out(n, 2 * k) = T(a * c - b * s);
      out(n, 2 * k + 1) = T(a * s + b * c);
    });
  });
}

template <class T>
void twice_by_reading_it(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) { out(b, i) = x(b, i); });
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    out(b, i) = T(Accum<T>(out(b, i)) + Accum<T>(x(b, i)));
  });
}

}  // namespace nativeops
