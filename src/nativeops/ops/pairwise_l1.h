// SPDX-License-Identifier: Apache-2.0
// Pairwise L1 distance: forward and gradient. Declared in pairwise_l1.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[i,j] = Σ_k |x[i,k] - y[j,k]|
template <class T>
void pairwise_l1(Device& dev, In<T, 3> x, In<T, 3> y, Out<T, 3> out) {
  using A = Accum<T>;
  contract(dev, out, x, transpose(y), [] KERNEL(A x, A y) { return abs(x - y); });
}

// d_x[i,k] =  Σ_j d_out[i,j] · sign(x[i,k] - y[j,k])
// d_y[j,k] = -Σ_i d_out[i,j] · sign(x[i,k] - y[j,k])      with sign(0) = 0
template <class T>
void pairwise_l1_grad(Device& dev, In<T, 3> x, In<T, 3> y, In<T, 3> d_out, Out<T, 3> d_x,
                      Out<T, 3> d_y) {
  using A = Accum<T>;
  auto term = [] KERNEL(A d, A other, A self) { return d * sign(self - other); };
  if (d_x) contract(dev, d_x, d_out, y, /*at=*/x, term);
  if (d_y) contract(dev, d_y, transpose(d_out), x, /*at=*/y, term);
}

}  // namespace nativeops
