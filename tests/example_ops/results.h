// SPDX-License-Identifier: Apache-2.0
// Several results, or small ones. Declared in results.py.
#pragma once
#include <cmath>

#include "nativeops/devices/kernel.h"

namespace nativeops {

// y[k] = x[k] · inverse, inverse = (Σ_k x[k]^2 + 1)^(-1/2)
template <class T>
void normalise(Device& dev, In<T, 3> x, Out<T, 3> y, Out<T, 2> inverse) {
  Out<T, 2> rows;  // as many as y has
  rows.data = nullptr;
  for (int axis = 0; axis < 2; ++axis) rows.size_[axis] = y.size(axis), rows.stride_[axis] = 0;
  for_each(dev, rows, [=] KERNEL(int64_t b, int64_t i) {
    Accum<T> sum = 1;
    for (int64_t k = 0; k < x.size(2); ++k) sum += Accum<T>(x(b, i, k)) * Accum<T>(x(b, i, k));
    const Accum<T> one_over = 1 / std::sqrt(sum);
    for (int64_t k = 0; k < x.size(2); ++k) y(b, i, k) = T(Accum<T>(x(b, i, k)) * one_over);
    if (inverse) inverse(b, i) = T(one_over);
  });
}

// d_x[k] = inverse · (d_y[k] - y[k] · Σ_k d_y[k] · y[k])
template <class T>
void normalise_grad(Device& dev, In<T, 3> y, In<T, 2> inverse, In<T, 3> d_y, Out<T, 3> d_x) {
  for_each(dev, d_x, [=] KERNEL(int64_t b, int64_t i, int64_t k) {
    Accum<T> sum = 0;
    for (int64_t l = 0; l < y.size(2); ++l) sum += Accum<T>(d_y(b, i, l)) * Accum<T>(y(b, i, l));
    const Accum<T> own = Accum<T>(d_y(b, i, k)) - Accum<T>(y(b, i, k)) * sum;
    d_x(b, i, k) = T(Accum<T>(inverse(b, i)) * own);
  });
}

// least = min_k x[k], largest = max_k x[k]
template <class T>
void extremes(Device& dev, In<T, 2> x, Out<T, 1> least, Out<T, 1> largest) {
  using A = Accum<T>;
  if (least) {
    for_each(dev, least, [=] KERNEL(int64_t i) {
      A found = highest<A>();
      for (int64_t k = 0; k < x.size(1); ++k) found = min2(found, A(x(i, k)));
      least(i) = T(found);
    });
  }
  if (largest) {
    for_each(dev, largest, [=] KERNEL(int64_t i) {
      A found = lowest<A>();
      for (int64_t k = 0; k < x.size(1); ++k) found = max2(found, A(x(i, k)));
      largest(i) = T(found);
    });
  }
}

// out = how many x[k] > share
template <class T>
void count_above(Device& dev, In<T, 2> x, Out<int32_t, 1> out, double share) {
  for_each(dev, out, [=] KERNEL(int64_t b) {
    int32_t n = 0;
    for (int64_t k = 0; k < x.size(1); ++k) n += Accum<T>(x(b, k)) > share;
    out(b) = n;
  });
}

// out = Σ_k x[k] · y[k]
template <class T>
void dot(Device& dev, In<T, 1> x, In<T, 1> y, Out<T, 0> out) {
  Out<T, 1> one;
  one.data = out.data, one.size_[0] = 1, one.stride_[0] = 1;
  for_each(dev, one, [=] KERNEL(int64_t) {
    Accum<T> sum = 0;
    for (int64_t k = 0; k < x.size(0); ++k) sum += Accum<T>(x(k)) * Accum<T>(y(k));
    out() = T(sum);
  });
}

// out[k] = x[k] · factor
template <class T>
void scale(Device& dev, In<T, 1> x, In<T, 0> factor, Out<T, 1> out) {
  for_each(dev, out,
           [=] KERNEL(int64_t k) { out(k) = T(Accum<T>(x(k)) * Accum<T>(factor())); });
}

// out = -x where both are equal, else x
template <class T>
void turned(Device& dev, In<T, 1> x, Out<T, 1> out, bool ctx, bool self) {
  fill(dev, out, [=] KERNEL(int64_t i) { return ctx == self ? T(-Accum<T>(x(i))) : x(i); });
}

}  // namespace nativeops
