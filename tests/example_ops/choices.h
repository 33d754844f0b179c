// SPDX-License-Identifier: Apache-2.0
// Choices by index, mask and attribute. Declared in choices.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[i,c] = x[index[i],c], 0 where the index is outside
template <class T, class I>
void take(Device& dev, In<T, 3> x, In<I, 2> index, Out<T, 3> out) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i, int64_t c) {
    const int64_t at = index(b, i);
    out(b, i, c) = at >= 0 && at < x.size(1) ? x(b, at, c) : T(0);
  });
}

// d_x[n,c] = Σ_i d_out[i,c] where index[i] = n
template <class T, class I>
void take_grad(Device& dev, In<T, 3>, In<I, 2> index, In<T, 3> d_out, Out<T, 3> d_x) {
  for_each(dev, d_x, [=] KERNEL(int64_t b, int64_t n, int64_t c) {
    Accum<T> sum = 0;
    for (int64_t i = 0; i < index.size(1); ++i) {
      if (index(b, i) == n) sum += d_out(b, i, c);
    }
    d_x(b, n, c) = T(sum);
  });
}

// out[i,c] = x[i,c] · weight[i] / 255 where shown, else the fill: 0 zero, 1 one
template <class T>
void blend(Device& dev, In<T, 2> x, In<bool, 1> mask, In<uint8_t, 1> weight, Out<T, 2> out,
           int64_t fill, bool invert) {
  using A = Accum<T>;
  for_each(dev, out, [=] KERNEL(int64_t i, int64_t c) {
    const bool shown = mask(i) != invert;
    out(i, c) = shown ? T(A(x(i, c)) * (A(weight(i)) / 255)) : T(A(fill));
  });
}

// d_x[i,c] = d_out[i,c] · weight[i] / 255 where shown, else 0
template <class T>
void blend_grad(Device& dev, In<bool, 1> mask, In<uint8_t, 1> weight, In<T, 2> d_out,
                Out<T, 2> d_x, bool invert) {
  using A = Accum<T>;
  for_each(dev, d_x, [=] KERNEL(int64_t i, int64_t c) {
    d_x(i, c) = mask(i) != invert ? T(A(d_out(i, c)) * (A(weight(i)) / 255)) : T(0);
  });
}

}  // namespace nativeops
