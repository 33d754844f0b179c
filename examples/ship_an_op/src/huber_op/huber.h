// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[i] = x[i]^2 / 2 where |x[i]| <= delta, else delta (|x[i]| - delta / 2)
template <class T>
void huber(Device& dev, In<T, 2> x, Out<T, 2> out, double delta) {
  const Accum<T> limit = static_cast<Accum<T>>(delta);
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    const Accum<T> value = x(b, i), size = abs(value);
    out(b, i) = T(size <= limit ? value * value / 2 : limit * (size - limit / 2));
  });
}

// d_x[i] = d_out[i] min(max(x[i], -delta), delta)
template <class T>
void huber_grad(Device& dev, In<T, 2> x, In<T, 2> d_out, Out<T, 2> d_x, double delta) {
  const Accum<T> limit = static_cast<Accum<T>>(delta);
  for_each(dev, d_x, [=] KERNEL(int64_t b, int64_t i) {
    const Accum<T> step = min_or_nan(max_or_nan(Accum<T>(x(b, i)), -limit), limit);
    d_x(b, i) = T(Accum<T>(d_out(b, i)) * step);
  });
}

}  // namespace nativeops
