// SPDX-License-Identifier: Apache-2.0
// LSTM over a grid, and its gradient: the formulas of a unit. Declared in two_d_lstm.py.
#pragma once
#include "nativeops/devices/grid.h"
#include "nativeops/devices/slopes.h"

namespace nativeops {

// i, f, λ, o = σ(z)      g = tanh(z_g)      c = f·(c_left + λ·(c_above - c_left)) + i·g
// h = o·tanh(c)
struct GridUnit {
  template <class V>
  HOST_DEVICE static V forward(const V* z, V c_above, V c_left, V& c, V* gates) {
    const V i = gates[0] = sigmoid(z[0]);
    const V f = gates[1] = sigmoid(z[1]);
    const V lambda = gates[2] = sigmoid(z[2]);
    const V o = gates[3] = sigmoid(z[3]);
    const V g = gates[4] = tanh(z[4]);
    c = f * (c_left + lambda * (c_above - c_left)) + i * g;
    return o * tanh(c);
  }
  // d_c is on entry what arrives at the cell, from the cells after it.
  template <class V>
  HOST_DEVICE static void backward(const V* gates, V c_above, V c_left, V c, V d_h, V d_c, V* d_z,
                                   V& d_above, V& d_left) {
    const V i = gates[0], f = gates[1], lambda = gates[2], o = gates[3], g = gates[4];
    const V tanh_c = tanh(c), between = c_above - c_left;
    d_c = d_c + d_h * o * tanh_slope(tanh_c);
    const V d_before = d_c * f;
    d_z[0] = d_c * g * sigmoid_slope(i);
    d_z[1] = d_c * (c_left + lambda * between) * sigmoid_slope(f);
    d_z[2] = d_before * between * sigmoid_slope(lambda);
    d_z[3] = d_h * tanh_c * sigmoid_slope(o);
    d_z[4] = d_c * i * tanh_slope(g);
    d_above = d_before * lambda;
    d_left = d_before - d_above;
  }
};

template <class T, class Formulas = grid::Formulas<GridUnit, T>>
void two_d_lstm(Device& dev, In<T, 4> x, In<T, 2> w, In<T, 2> v_v, In<T, 2> v_h, In<T, 1> bias,
                In<int32_t, 1> heights, In<int32_t, 1> widths, In<T, 3> h_0, In<T, 3> c_0,
                Out<T, 4> output, Out<T, 3> h_n, Out<T, 3> c_n, Out<T, 4> gates, Out<T, 4> cells) {
  grid::run<Formulas, T>(dev, {x, w, v_v, v_h, bias, heights, widths, h_0, c_0},
                         {output, h_n, c_n, gates, cells});
}

template <class T, class Formulas = grid::Formulas<GridUnit, T>>
void two_d_lstm_grad(Device& dev, In<T, 4> x, In<T, 2> w, In<T, 2> v_v, In<T, 2> v_h, In<T, 1> bias,
                     In<T, 4> output, In<T, 4> gates, In<T, 4> cells, In<T, 4> d_output,
                     In<T, 3> d_h_n, In<T, 3> d_c_n, In<int32_t, 1> heights, In<int32_t, 1> widths,
                     In<T, 3> h_0, In<T, 3> c_0, Out<T, 4> d_x, Out<T, 2> d_w, Out<T, 2> d_v_v,
                     Out<T, 2> d_v_h, Out<T, 1> d_bias, Out<T, 3> d_h_0, Out<T, 3> d_c_0) {
  grid::run_back<Formulas, T>(dev, {x, w, v_v, v_h, bias, heights, widths, h_0, c_0},
                              {output, gates, cells, d_output, d_h_n, d_c_n},
                              {d_x, d_w, d_v_v, d_v_h, d_bias, d_h_0, d_c_0});
}

}  // namespace nativeops
