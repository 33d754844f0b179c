// SPDX-License-Identifier: Apache-2.0
// GRU layer, tuned, on the CPU with tiles where NATIVEOPS_LEVEL >= 3. Declared in gru.py.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"

namespace nativeops::tuned {

template <class T>
void gru_layer(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 1> b_ih, In<T, 1> b_hh,
               In<T, 2> h_0, In<int32_t, 1> lengths, Out<T, 3> output, Out<T, 2> h_n,
               Out<T, 3> gates, bool linear_before_reset, bool reverse, bool, int64_t precision) {
  const Layer<T> layer{x, w_ih, w_hh, b_ih, b_hh, h_0, {}, lengths, reverse, precision == kHigh};
  const States<T> to{output, h_n, {}, gates, {}};
  if (linear_before_reset) return tuned::recurrent_layer<GruCell, T>(dev, layer, to);
  tuned::recurrent_layer<ResetFirstGruCell, T>(dev, reset_first(layer), to);
}

template <class T>
void gru_layer_grad(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 3> output,
                    In<T, 3> d_output, In<T, 2> d_h_n, In<T, 3> gates, In<T, 1> b_ih, In<T, 1> b_hh,
                    In<T, 2> h_0, In<int32_t, 1> lengths, Out<T, 3> d_x, Out<T, 2> d_w_ih,
                    Out<T, 2> d_w_hh, Out<T, 1> d_b_ih, Out<T, 1> d_b_hh, Out<T, 2> d_h_0,
                    bool linear_before_reset, bool reverse, int64_t precision) {
  const Layer<T> layer{x, w_ih, w_hh, b_ih, b_hh, h_0, {}, lengths, reverse, precision == kHigh};
  const Arrived<T> from{output, gates, {}, d_output, d_h_n, {}};
  const LayerGrads<T> to{d_x, d_w_ih, d_w_hh, d_b_ih, d_b_hh, d_h_0, {}};
  if (linear_before_reset) return tuned::recurrent_layer_grad<GruCell, T>(dev, layer, from, to);
  tuned::recurrent_layer_grad<ResetFirstGruCell, T>(dev, reset_first(layer), from,
                                                    reset_first(to, layer.width()));
}

}  // namespace nativeops::tuned
