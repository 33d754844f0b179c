// SPDX-License-Identifier: Apache-2.0
// LSTM layer whose state is projected: the cell. Declared in lstm_projected.py.
#pragma once
#include "nativeops/ops/lstm.h"

namespace nativeops {

// h' = W_hr (o·tanh(c')): the second product is the state itself.
struct ProjectedLstmCell : LstmCell {
  static constexpr bool kSecond = true;

  template <class V>
  HOST_DEVICE static V finish(const V*, V sum, V, V*) {
    return sum;
  }
  template <class V>
  HOST_DEVICE static V early(const V*, V, V d_h, V& d_sum, V*) {
    d_sum = d_h;
    return V();
  }
  template <class V>
  HOST_DEVICE static V middle(const V* kept, V, V c) {
    return kept[3] * tanh(c);
  }
};

template <class T, class Engine = RecurrentEngine>
void lstm_projected_layer(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 2> w_hr,
                          In<T, 1> b_ih, In<T, 1> b_hh, In<T, 2> h_0, In<T, 2> c_0,
                          In<int32_t, 1> lengths, In<T, 1> peepholes, Out<T, 3> output,
                          Out<T, 2> h_n, Out<T, 2> c_n, Out<T, 3> gates, Out<T, 3> cells,
                          bool reverse, bool, int64_t precision) {
  const Layer<T> layer{x,    w_ih, w_hh,     b_ih,    b_hh,
                       h_0,  c_0,  lengths,  reverse, precision == kHigh,
                       w_hr, {},   peepholes};
  Engine::template layer<ProjectedLstmCell>(dev, layer, {output, h_n, c_n, gates, cells});
}

template <class T, class Engine = RecurrentEngine>
void lstm_projected_layer_grad(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 2> w_hr,
                               In<T, 3> output, In<T, 3> cells, In<T, 3> d_output, In<T, 2> d_h_n,
                               In<T, 2> d_c_n, In<T, 3> gates, In<T, 1> b_ih, In<T, 1> b_hh,
                               In<T, 2> h_0, In<T, 2> c_0, In<int32_t, 1> lengths,
                               In<T, 1> peepholes, Out<T, 3> d_x, Out<T, 2> d_w_ih,
                               Out<T, 2> d_w_hh, Out<T, 2> d_w_hr, Out<T, 1> d_b, Out<T, 2> d_h_0,
                               Out<T, 2> d_c_0, Out<T, 1> d_peepholes, bool reverse,
                               int64_t precision) {
  const Layer<T> layer{x,    w_ih, w_hh,     b_ih,    b_hh,
                       h_0,  c_0,  lengths,  reverse, precision == kHigh,
                       w_hr, {},   peepholes};
  Engine::template layer_grad<ProjectedLstmCell>(
      dev, layer, {output, gates, cells, d_output, d_h_n, d_c_n},
      {d_x, d_w_ih, d_w_hh, d_b, {}, d_h_0, d_c_0, d_w_hr, {}, d_peepholes});
}

}  // namespace nativeops
