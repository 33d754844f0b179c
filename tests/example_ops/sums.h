// SPDX-License-Identifier: Apache-2.0
// Sums that stay as wide as they were added up. Declared in sums.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[n] = (x[n] - mean) · scale[n], total = Σ_n x[n]
template <class T>
void centred(Device& dev, In<Accum<T>, 1> mean, In<T, 2> x, In<Accum<T>, 1> scale, Out<T, 2> out,
             Out<Accum<T>, 1> total) {
  using A = Accum<T>;
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    out(b, i) = T((A(x(b, i)) - mean(b)) * (scale ? scale(i) : A(1)));
  });
  for_each(dev, total, [=] KERNEL(int64_t b) {
    A sum = 0;
    for (int64_t i = 0; i < x.size(1); ++i) sum += A(x(b, i));
    total(b) = sum;
  });
}

// d_mean = -Σ_n d_out[n] · scale[n], d_x[n] = d_out[n] · scale[n] + d_total,
// d_scale[n] = Σ_b d_out[b,n] · (x[b,n] - mean[b])
template <class T>
void centred_grad(Device& dev, In<Accum<T>, 1> mean, In<T, 2> x, In<T, 2> d_out,
                  In<Accum<T>, 1> d_total, In<Accum<T>, 1> scale, Out<Accum<T>, 1> d_mean,
                  Out<T, 2> d_x, Out<Accum<T>, 1> d_scale) {
  using A = Accum<T>;
  for_each(dev, d_mean, [=] KERNEL(int64_t b) {
    A sum = 0;
    for (int64_t i = 0; i < x.size(1); ++i) sum += A(d_out(b, i)) * (scale ? scale(i) : A(1));
    d_mean(b) = -sum;
  });
  for_each(dev, d_x, [=] KERNEL(int64_t b, int64_t i) {
    d_x(b, i) = T(A(d_out(b, i)) * (scale ? scale(i) : A(1)) + d_total(b));
  });
  for_each(dev, d_scale, [=] KERNEL(int64_t i) {
    A sum = 0;
    for (int64_t b = 0; b < x.size(0); ++b) sum += A(d_out(b, i)) * (A(x(b, i)) - mean(b));
    d_scale(i) = sum;
  });
}

// out = Σ_n x[n] / n
template <class T>
void mean_of(Device& dev, In<T, 2> x, Out<Accum<T>, 1> out) {
  using A = Accum<T>;
  for_each(dev, out, [=] KERNEL(int64_t b) {
    A sum = 0;
    for (int64_t i = 0; i < x.size(1); ++i) sum += A(x(b, i));
    out(b) = sum / A(x.size(1) > 0 ? x.size(1) : 1);
  });
}

}  // namespace nativeops
