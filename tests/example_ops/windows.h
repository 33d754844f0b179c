// SPDX-License-Identifier: Apache-2.0
// Windows of sequences. Declared in windows.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[i,c] = Σ_j x[i+j,c] for j < k
template <class T>
void moving_sum(Device& dev, In<T, 3> x, Out<T, 3> out, int64_t k) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i, int64_t c) {
    Accum<T> sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += x(b, i + j, c);
    out(b, i, c) = T(sum);
  });
}

// d_x[i,c] = Σ_j back[i-j,c] for j < k, where there is such an element
template <class T>
void moving_sum_grad(Device& dev, In<T, 3> back, Out<T, 3> d_x, int64_t k) {
  for_each(dev, d_x, [=] KERNEL(int64_t b, int64_t i, int64_t c) {
    Accum<T> sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      if (i - j >= 0 && i - j < back.size(1)) sum += back(b, i - j, c);
    }
    d_x(b, i, c) = T(sum);
  });
}

// out[2i] = x[i], out[2i+1] = y[i]
template <class T>
void interleave(Device& dev, In<T, 2> x, In<T, 2> y, Out<T, 2> out) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    out(b, i) = i % 2 == 0 ? x(b, i / 2) : y(b, i / 2);
  });
}

// d_x[i] = d_out[2i], d_y[i] = d_out[2i+1]
template <class T>
void interleave_grad(Device& dev, In<T, 2>, In<T, 2> d_out, Out<T, 2> d_x, Out<T, 2> d_y) {
  if (d_x) for_each(dev, d_x, [=] KERNEL(int64_t b, int64_t i) { d_x(b, i) = d_out(b, 2 * i); });
  if (d_y) for_each(dev, d_y, [=] KERNEL(int64_t b, int64_t i) { d_y(b, i) = d_out(b, 2 * i + 1); });
}

// out[i,k] = x[k]
template <class T>
void copies(Device& dev, In<T, 1> x, Out<T, 2> out, int64_t) {
  for_each(dev, out, [=] KERNEL(int64_t i, int64_t k) { out(i, k) = x(k); });
}

// out[p,i,c] = x[step p + i, c], 0 beyond the end
template <class T>
void pieces(Device& dev, In<T, 2> x, Out<T, 3> out, int64_t, int64_t step) {
  for_each(dev, out, [=] KERNEL(int64_t p, int64_t i, int64_t c) {
    const int64_t t = step * p + i;
    out(p, i, c) = t < x.size(0) ? x(t, c) : T(0);
  });
}

// d_x[t,c] = Σ_p d_out[p, t - step p, c]
template <class T>
void pieces_grad(Device& dev, In<T, 2>, In<T, 3> d_out, Out<T, 2> d_x, int64_t size, int64_t step) {
  for_each(dev, d_x, [=] KERNEL(int64_t t, int64_t c) {
    Accum<T> sum = 0;
    for (int64_t p = 0; p < d_out.size(0); ++p) {
      if (t >= step * p && t < step * p + size) sum += d_out(p, t - step * p, c);
    }
    d_x(t, c) = T(sum);
  });
}

}  // namespace nativeops
