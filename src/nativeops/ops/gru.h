// SPDX-License-Identifier: Apache-2.0
// GRU layer: the cell. Declared in gru.py.
#pragma once
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops {

// With x = W_ih x + b_ih and h = W_hh h + b_hh of the three gates:
// r, z = σ(x_r + h_r), σ(x_z + h_z)      n = tanh(x_n + r·h_n)      h' = (1 - z)·n + z·h
struct GruCell : CellDefaults {
  static constexpr int kGates = 3, kStateGates = 3, kKept = 4;
  static constexpr bool kReadsState = true;

  template <class V, class Own>
  HOST_DEVICE static V forward(const V* x, const V* h, V state, V&, V* kept, const Own&) {
    const V r = kept[0] = sigmoid(x[0] + h[0]);
    const V z = kept[1] = sigmoid(x[1] + h[1]);
    const V n = kept[2] = tanh(x[2] + r * h[2]);
    kept[3] = h[2];
    return n + z * (state - n);
  }

  // The gradients of x_n, of x_r and h_r, of x_z and h_z, and of h_n.
  static constexpr int kParts = 4;
  static constexpr int kInputPart[] = {1, 2, 0}, kStatePart[] = {1, 2, 3};

  template <class V, class Own>
  HOST_DEVICE static V backward(const V* kept, V, V state, V, V, V d_h, V&, V* part, const Own&) {
    const V r = kept[0], z = kept[1], n = kept[2];
    part[0] = (d_h - d_h * z) * tanh_slope(n);
    part[1] = part[0] * kept[3] * sigmoid_slope(r);
    part[2] = d_h * (state - n) * sigmoid_slope(z);
    part[3] = part[0] * r;
    return d_h * z;
  }
};

// The same with the reset gate before the product: n = tanh(x_n + W_hn (r·h) + b_hn)
struct ResetFirstGruCell : CellDefaults {
  static constexpr int kGates = 3, kStateGates = 2, kKept = 3, kKeptLate = 1;
  static constexpr bool kReadsState = true, kSecond = true;

  template <class V, class Own>
  HOST_DEVICE static V forward(V* x, const V* h, V state, V&, V* kept, const Own&) {
    kept[0] = sigmoid(x[0] + h[0]);
    kept[1] = x[1] = sigmoid(x[1] + h[1]);
    return kept[0] * state;
  }
  template <class V>
  HOST_DEVICE static V finish(const V* x, V sum, V state, V* kept) {
    const V n = kept[2] = tanh(x[2] + sum);
    return n + x[1] * (state - n);
  }

  // The gradients of x_r and h_r, of x_z and h_z; that of x_n is that of the second sum behind
  // them.
  static constexpr int kParts = 2, kPartsEarly = 1;
  static constexpr int kInputPart[] = {0, 1, 2}, kStatePart[] = {0, 1};

  template <class V>
  HOST_DEVICE static V early(const V* kept, V state, V d_h, V& d_sum, V* part) {
    const V z = kept[1], n = kept[2];
    d_sum = (d_h - d_h * z) * tanh_slope(n);
    part[1] = d_h * (state - n) * sigmoid_slope(z);
    return d_h * z;
  }
  template <class V, class Own>
  HOST_DEVICE static V backward(const V* kept, V, V state, V, V, V d_middle, V&, V* part,
                                const Own&) {
    part[0] = d_middle * state * sigmoid_slope(kept[0]);
    return d_middle * kept[0];
  }
  template <class V>
  HOST_DEVICE static V middle(const V* kept, V state, V) {
    return kept[0] * state;
  }
};

// Entries [first, first + count) along the first axis, if there is memory at all.
template <class T, int N>
View<T, N> first_axis(View<T, N> all, int64_t first, int64_t count) {
  if (all) all.data += first * all.stride(0);
  all.size_[0] = count;
  return all;
}

// A layer whose third gate is multiplied second.
template <class T>
Layer<T> reset_first(Layer<T> layer) {
  const int64_t h = layer.width();
  layer.w_second = first_axis(layer.w_hh, 2 * h, h);
  layer.b_second = first_axis(layer.b_hh, 2 * h, h);
  layer.w_hh = first_axis(layer.w_hh, 0, 2 * h);
  layer.b_hh = first_axis(layer.b_hh, 0, 2 * h);
  return layer;
}
template <class T>
LayerGrads<T> reset_first(LayerGrads<T> to, int64_t h) {
  to.w_second = first_axis(to.w_hh, 2 * h, h);
  to.b_second = first_axis(to.b_hh, 2 * h, h);
  to.w_hh = first_axis(to.w_hh, 0, 2 * h);
  to.b_hh = first_axis(to.b_hh, 0, 2 * h);
  return to;
}

template <class T, class Engine = RecurrentEngine>
void gru_layer(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 1> b_ih, In<T, 1> b_hh,
               In<T, 2> h_0, In<int32_t, 1> lengths, Out<T, 3> output, Out<T, 2> h_n,
               Out<T, 3> gates, bool linear_before_reset, bool reverse, bool, int64_t precision) {
  const Layer<T> layer{x, w_ih, w_hh, b_ih, b_hh, h_0, {}, lengths, reverse, precision == kHigh};
  const States<T> to{output, h_n, {}, gates, {}};
  if (linear_before_reset) return Engine::template layer<GruCell>(dev, layer, to);
  Engine::template layer<ResetFirstGruCell>(dev, reset_first(layer), to);
}

template <class T, class Engine = RecurrentEngine>
void gru_layer_grad(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 3> output,
                    In<T, 3> d_output, In<T, 2> d_h_n, In<T, 3> gates, In<T, 1> b_ih, In<T, 1> b_hh,
                    In<T, 2> h_0, In<int32_t, 1> lengths, Out<T, 3> d_x, Out<T, 2> d_w_ih,
                    Out<T, 2> d_w_hh, Out<T, 1> d_b_ih, Out<T, 1> d_b_hh, Out<T, 2> d_h_0,
                    bool linear_before_reset, bool reverse, int64_t precision) {
  const Layer<T> layer{x, w_ih, w_hh, b_ih, b_hh, h_0, {}, lengths, reverse, precision == kHigh};
  const Arrived<T> from{output, gates, {}, d_output, d_h_n, {}};
  const LayerGrads<T> to{d_x, d_w_ih, d_w_hh, d_b_ih, d_b_hh, d_h_0, {}};
  if (linear_before_reset) return Engine::template layer_grad<GruCell>(dev, layer, from, to);
  Engine::template layer_grad<ResetFirstGruCell>(dev, reset_first(layer), from,
                                                 reset_first(to, layer.width()));
}

}  // namespace nativeops
