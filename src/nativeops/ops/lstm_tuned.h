// SPDX-License-Identifier: Apache-2.0
// LSTM layer, tuned, on the CPU with tiles where NATIVEOPS_LEVEL >= 3. Declared in lstm.py.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"

namespace nativeops::tuned {

template <class T>
void lstm_layer(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 1> b_ih, In<T, 1> b_hh,
                In<T, 2> h_0, In<T, 2> c_0, In<int32_t, 1> lengths, In<T, 1> peepholes,
                Out<T, 3> output, Out<T, 2> h_n, Out<T, 2> c_n, Out<T, 3> gates, Out<T, 3> cells,
                bool reverse, bool, int64_t precision) {
  const Layer<T> layer{
      x, w_ih, w_hh, b_ih, b_hh, h_0, c_0, lengths, reverse, precision == kHigh, {}, {}, peepholes};
  tuned::recurrent_layer<LstmCell, T>(dev, layer, {output, h_n, c_n, gates, cells});
}

template <class T>
void lstm_layer_grad(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 3> output,
                     In<T, 3> cells, In<T, 3> d_output, In<T, 2> d_h_n, In<T, 2> d_c_n,
                     In<T, 3> gates, In<T, 1> b_ih, In<T, 1> b_hh, In<T, 2> h_0, In<T, 2> c_0,
                     In<int32_t, 1> lengths, In<T, 1> peepholes, Out<T, 3> d_x, Out<T, 2> d_w_ih,
                     Out<T, 2> d_w_hh, Out<T, 1> d_b, Out<T, 2> d_h_0, Out<T, 2> d_c_0,
                     Out<T, 1> d_peepholes, bool reverse, int64_t precision) {
  const Layer<T> layer{
      x, w_ih, w_hh, b_ih, b_hh, h_0, c_0, lengths, reverse, precision == kHigh, {}, {}, peepholes};
  tuned::recurrent_layer_grad<LstmCell, T>(
      dev, layer, {output, gates, cells, d_output, d_h_n, d_c_n},
      {d_x, d_w_ih, d_w_hh, d_b, {}, d_h_0, d_c_0, {}, {}, d_peepholes});
}

}  // namespace nativeops::tuned
