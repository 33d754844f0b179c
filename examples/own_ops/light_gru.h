// SPDX-License-Identifier: Apache-2.0
// A light GRU: a recurrent cell of one's own, and all that is written for it. Declared in
// light_gru.py.
#pragma once
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops {

// With the sums u = x + h of both gates:  a = max(u_a, 0)    z = σ(u_z)    h' = z·h + (1 - z)·a
// V is a number, or as many units as the machine computes at once.
struct LightGruCell : CellDefaults {
  static constexpr int kGates = 2, kStateGates = 2, kKept = 2;
  static constexpr bool kReadsState = true;

  template <class V, class Own>
  HOST_DEVICE static V forward(const V* x, const V* h, V state, V&, V* kept, const Own&) {
    const V a = kept[0] = relu(x[0] + h[0]);
    const V z = kept[1] = sigmoid(x[1] + h[1]);
    return a + z * (state - a);
  }

  // The gradients of u_a and u_z, which are those of x and h; and what passes by them to the state.
  static constexpr int kParts = 2;
  static constexpr int kInputPart[] = {0, 1}, kStatePart[] = {0, 1};

  template <class V, class Own>
  HOST_DEVICE static V backward(const V* kept, V, V state, V, V, V d_h, V&, V* part, const Own&) {
    const V a = kept[0], z = kept[1];
    part[0] = (d_h - d_h * z) * relu_slope(a);
    part[1] = d_h * (state - a) * sigmoid_slope(z);
    return d_h * z;
  }
};

template <class T, class Engine = RecurrentEngine>
void light_gru(Device& dev, In<T, 3> sums, In<T, 2> w_hh, In<T, 2> h_0, In<int32_t, 1> lengths,
               Out<T, 3> output, Out<T, 2> h_n, Out<T, 3> gates) {
  Layer<T> layer = layer_without_inputs(sums, w_hh, h_0);
  layer.sums = sums;
  layer.lengths = lengths;
  Engine::template layer<LightGruCell>(dev, layer, {output, h_n, {}, gates, {}});
}

template <class T, class Engine = RecurrentEngine>
void light_gru_grad(Device& dev, In<T, 2> w_hh, In<T, 3> output, In<T, 3> gates, In<T, 3> d_output,
                    In<T, 2> d_h_n, In<T, 2> h_0, In<int32_t, 1> lengths, Out<T, 3> d_sums,
                    Out<T, 2> d_w_hh, Out<T, 2> d_h_0) {
  Layer<T> layer = layer_without_inputs(gates, w_hh, h_0);
  layer.lengths = lengths;
  LayerGrads<T> to{{}, {}, d_w_hh, {}, {}, d_h_0, {}};
  to.sums = d_sums;
  Engine::template layer_grad<LightGruCell>(dev, layer, {output, gates, {}, d_output, d_h_n, {}},
                                            to);
}

}  // namespace nativeops
