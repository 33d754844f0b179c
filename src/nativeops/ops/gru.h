// SPDX-License-Identifier: Apache-2.0
// GRU layer: the cell. Declared in gru.py.
#pragma once
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops {

// With x = W_ih x + b_ih and h = W_hh h + b_hh of the three gates:
// r, z = σ(x_r + h_r), σ(x_z + h_z)      n = tanh(x_n + r·h_n)      h' = (1 - z)·n + z·h
struct GruCell {
  static constexpr int kGates = 3, kKept = 4;
  static constexpr bool kHasCell = false;

  template <class V>
  HOST_DEVICE static V forward(const V* x, const V* h, V state, V&, V* kept) {
    const V r = kept[0] = sigmoid(x[0] + h[0]);
    const V z = kept[1] = sigmoid(x[1] + h[1]);
    const V n = kept[2] = tanh(x[2] + r * h[2]);
    kept[3] = h[2];
    return n + z * (state - n);
  }

  // The gradients of x_n, of x_r and h_r, of x_z and h_z, and of h_n.
  static constexpr int kParts = 4;
  static constexpr int kInputPart[] = {1, 2, 0}, kStatePart[] = {1, 2, 3};

  template <class V>
  HOST_DEVICE static V backward(const V* kept, V, V state, V, V, V d_h, V&, V* part) {
    const V r = kept[0], z = kept[1], n = kept[2];
    part[0] = (d_h - d_h * z) * tanh_slope(n);
    part[1] = part[0] * kept[3] * sigmoid_slope(r);
    part[2] = d_h * (state - n) * sigmoid_slope(z);
    part[3] = part[0] * r;
    return d_h * z;
  }
};

template <class T>
void gru_layer(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 1> b_ih, In<T, 1> b_hh,
               In<T, 2> h_0, In<int32_t, 1> lengths, Out<T, 3> output, Out<T, 2> h_n,
               Out<T, 3> gates, bool reverse, bool, int64_t) {
  recurrent_layer<GruCell, T>(dev, {x, w_ih, w_hh, b_ih, b_hh, h_0, {}, lengths, reverse},
                              {output, h_n, {}, gates, {}});
}

template <class T>
void gru_layer_grad(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 3> output,
                    In<T, 3> d_output, In<T, 2> d_h_n, In<T, 3> gates, In<T, 1> b_ih, In<T, 1> b_hh,
                    In<T, 2> h_0, In<int32_t, 1> lengths, Out<T, 3> d_x, Out<T, 2> d_w_ih,
                    Out<T, 2> d_w_hh, Out<T, 1> d_b_ih, Out<T, 1> d_b_hh, Out<T, 2> d_h_0,
                    bool reverse, int64_t) {
  recurrent_layer_grad<GruCell, T>(dev, {x, w_ih, w_hh, b_ih, b_hh, h_0, {}, lengths, reverse},
                                   {output, gates, {}, d_output, d_h_n, {}},
                                   {d_x, d_w_ih, d_w_hh, d_b_ih, d_b_hh, d_h_0, {}});
}

}  // namespace nativeops
