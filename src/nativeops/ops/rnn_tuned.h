// SPDX-License-Identifier: Apache-2.0
// Simple recurrent layers, tuned, on the CPU with tiles where NATIVEOPS_LEVEL >= 3. Declared in
// rnn.py.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"

namespace nativeops::tuned {

template <class T>
void rnn_layer(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 1> b_ih, In<T, 1> b_hh,
               In<T, 2> h_0, In<int32_t, 1> lengths, Out<T, 3> output, Out<T, 2> h_n,
               int64_t activation, bool reverse, int64_t precision) {
  with_rnn_cell(activation, [&](auto cell) {
    tuned::recurrent_layer<decltype(cell), T>(
        dev, Layer<T>{x, w_ih, w_hh, b_ih, b_hh, h_0, {}, lengths, reverse, precision == kHigh},
        {output, h_n, {}, {}, {}});
  });
}

template <class T>
void rnn_layer_grad(Device& dev, In<T, 3> x, In<T, 2> w_ih, In<T, 2> w_hh, In<T, 3> output,
                    In<T, 3> d_output, In<T, 2> d_h_n, In<T, 2> h_0, In<int32_t, 1> lengths,
                    Out<T, 3> d_x, Out<T, 2> d_w_ih, Out<T, 2> d_w_hh, Out<T, 1> d_b,
                    Out<T, 2> d_h_0, int64_t activation, bool reverse, int64_t precision) {
  with_rnn_cell(activation, [&](auto cell) {
    tuned::recurrent_layer_grad<decltype(cell), T>(
        dev, Layer<T>{x, w_ih, w_hh, {}, {}, h_0, {}, lengths, reverse, precision == kHigh},
        {output, {}, {}, d_output, d_h_n, {}}, {d_x, d_w_ih, d_w_hh, d_b, {}, d_h_0, {}});
  });
}

}  // namespace nativeops::tuned
