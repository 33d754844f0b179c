// SPDX-License-Identifier: Apache-2.0
// Simple recurrent (Elman) layers: the cells. Declared in rnn.py.
#pragma once
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops {

// h' = f(W_ih x + b_ih + W_hh h + b_hh); the slope of f follows from h' itself.
template <class Activation>
struct RnnCell : CellDefaults {
  static constexpr int kGates = 1, kStateGates = 1, kKept = 0;

  template <class V, class Own>
  HOST_DEVICE static V forward(const V* x, const V* h, V, V&, V*, const Own&) {
    return Activation::value(x[0] + h[0]);
  }

  static constexpr int kParts = 1;
  static constexpr int kInputPart[] = {0}, kStatePart[] = {0};

  template <class V, class Own>
  HOST_DEVICE static V backward(const V*, V out, V, V, V, V d_h, V&, V* part, const Own&) {
    part[0] = d_h * Activation::slope(out);
    return V();
  }
};
struct Tanh {
  template <class V>
  HOST_DEVICE static V value(V z) {
    return tanh(z);
  }
  template <class V>
  HOST_DEVICE static V slope(V value) {
    return tanh_slope(value);
  }
};
struct Relu {
  template <class V>
  HOST_DEVICE static V value(V z) {
    return relu(z);
  }
  template <class V>
  HOST_DEVICE static V slope(V value) {
    return relu_slope(value);
  }
};

// f(cell) with the cell of an activation, by its place among the choices in rnn.py.
template <class F>
void with_rnn_cell(int64_t activation, F f) {
  activation == 0 ? f(RnnCell<Tanh>()) : f(RnnCell<Relu>());
}

template <class T, class Engine = RecurrentEngine>
void rnn_layer(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 1> b_ih, In<T, 1> b_hh,
               In<T, 2> h_0, In<int32_t, 1> lengths, Out<T, 3> output, Out<T, 2> h_n,
               int64_t activation, bool reverse, int64_t precision) {
  with_rnn_cell(activation, [&](auto cell) {
    Engine::template layer<decltype(cell), T>(
        dev, {x, w_ih, w_hh, b_ih, b_hh, h_0, {}, lengths, reverse, precision == kHigh},
        {output, h_n, {}, {}, {}});
  });
}

template <class T, class Engine = RecurrentEngine>
void rnn_layer_grad(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 3> output,
                    In<T, 3> d_output, In<T, 2> d_h_n, In<T, 2> h_0, In<int32_t, 1> lengths,
                    Out<T, 3> d_x, Out<T, 2> d_w_ih, Out<T, 2> d_w_hh, Out<T, 1> d_b,
                    Out<T, 2> d_h_0, int64_t activation, bool reverse, int64_t precision) {
  with_rnn_cell(activation, [&](auto cell) {
    Engine::template layer_grad<decltype(cell), T>(
        dev, {x, w_ih, w_hh, {}, {}, h_0, {}, lengths, reverse, precision == kHigh},
        {output, {}, {}, d_output, d_h_n, {}}, {d_x, d_w_ih, d_w_hh, d_b, {}, d_h_0, {}});
  });
}

}  // namespace nativeops
