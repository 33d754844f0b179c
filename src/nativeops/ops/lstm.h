// SPDX-License-Identifier: Apache-2.0
// LSTM layer: the cell. Declared in lstm.py.
#pragma once
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops {

// With the sums z = (W_ih x + b_ih) + (W_hh h + b_hh) of the four gates, and peepholes p:
// i, f = σ(z_i + p_i·c), σ(z_f + p_f·c)      g = tanh(z_g)      c' = f·c + i·g
// o = σ(z_o + p_o·c')                        h' = o·tanh(c')
struct LstmCell : CellDefaults {
  static constexpr int kGates = 4, kStateGates = 4, kKept = 4, kOwn = 3;
  static constexpr bool kHasCell = true;

  template <class V, class Own>
  HOST_DEVICE static V forward(const V* x, const V* h, V, V& c, V* kept, const Own& own) {
    V z_i = x[0] + h[0], z_f = x[1] + h[1], z_o = x[3] + h[3];
    if (own) {
      z_i = z_i + own[0] * c;
      z_f = z_f + own[1] * c;
    }
    const V i = kept[0] = sigmoid(z_i);
    const V f = kept[1] = sigmoid(z_f);
    const V g = kept[2] = tanh(x[2] + h[2]);
    c = f * c + i * g;
    if (own) z_o = z_o + own[2] * c;
    const V o = kept[3] = sigmoid(z_o);
    return o * tanh(c);
  }

  // The gradients of z are those of both products. Nothing passes by the gates to the state before.
  static constexpr int kParts = 4;
  static constexpr int kInputPart[] = {0, 1, 2, 3}, kStatePart[] = {0, 1, 2, 3};

  template <class V, class Own>
  HOST_DEVICE static V backward(const V* kept, V, V, V c, V c_before, V d_h, V& d_c, V* part,
                                const Own& own) {
    const V i = kept[0], f = kept[1], g = kept[2], o = kept[3], tanh_c = tanh(c);
    part[3] = d_h * tanh_c * sigmoid_slope(o);
    d_c = d_c + d_h * o * tanh_slope(tanh_c);
    if (own) d_c = d_c + part[3] * own[2];
    part[0] = d_c * g * sigmoid_slope(i);
    part[1] = d_c * c_before * sigmoid_slope(f);
    part[2] = d_c * i * tanh_slope(g);
    d_c = d_c * f;
    if (own) d_c = d_c + part[0] * own[0] + part[1] * own[1];
    return V();
  }
  template <class V>
  HOST_DEVICE static void add_own(const V* part, V c, V c_before, V* sum) {
    sum[0] = sum[0] + part[0] * c_before;
    sum[1] = sum[1] + part[1] * c_before;
    sum[2] = sum[2] + part[3] * c;
  }
};

template <class T, class Engine = RecurrentEngine>
void lstm_layer(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 1> b_ih, In<T, 1> b_hh,
                In<T, 2> h_0, In<T, 2> c_0, In<int32_t, 1> lengths, In<T, 1> peepholes,
                Out<T, 3> output, Out<T, 2> h_n, Out<T, 2> c_n, Out<T, 3> gates, Out<T, 3> cells,
                bool reverse, bool, int64_t precision) {
  const Layer<T> layer{
      x, w_ih, w_hh, b_ih, b_hh, h_0, c_0, lengths, reverse, precision == kHigh, {}, {}, peepholes};
  Engine::template layer<LstmCell>(dev, layer, {output, h_n, c_n, gates, cells});
}

template <class T, class Engine = RecurrentEngine>
void lstm_layer_grad(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 3> output,
                     In<T, 3> cells, In<T, 3> d_output, In<T, 2> d_h_n, In<T, 2> d_c_n,
                     In<T, 3> gates, In<T, 1> b_ih, In<T, 1> b_hh, In<T, 2> h_0, In<T, 2> c_0,
                     In<int32_t, 1> lengths, In<T, 1> peepholes, Out<T, 3> d_x, Out<T, 2> d_w_ih,
                     Out<T, 2> d_w_hh, Out<T, 1> d_b, Out<T, 2> d_h_0, Out<T, 2> d_c_0,
                     Out<T, 1> d_peepholes, bool reverse, int64_t precision) {
  const Layer<T> layer{
      x, w_ih, w_hh, b_ih, b_hh, h_0, c_0, lengths, reverse, precision == kHigh, {}, {}, peepholes};
  Engine::template layer_grad<LstmCell>(
      dev, layer, {output, gates, cells, d_output, d_h_n, d_c_n},
      {d_x, d_w_ih, d_w_hh, d_b, {}, d_h_0, d_c_0, {}, {}, d_peepholes});
}

}  // namespace nativeops
