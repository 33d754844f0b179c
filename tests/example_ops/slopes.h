// SPDX-License-Identifier: Apache-2.0
// Kept results that a gradient rule computes with. Declared in slopes.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// y[i] = x[i]², slope[i] = 2 · x[i]
template <class T>
void square(Device& dev, In<T, 2> x, Out<T, 2> y, Out<T, 2> slope) {
  for_each(dev, y, [=] KERNEL(int64_t b, int64_t i) {
    const Accum<T> value = Accum<T>(x(b, i));
    y(b, i) = T(value * value);
    if (slope) slope(b, i) = T(2 * value);
  });
}

template <class T>
void smooth_square(Device& dev, In<T, 2> x, Out<T, 2> y, Out<T, 2> slope) {
  square(dev, x, y, slope);
}

}  // namespace nativeops
