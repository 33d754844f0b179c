// SPDX-License-Identifier: Apache-2.0
// RETURNN's LSTM layers, tuned, on the CPU with tiles where NATIVEOPS_LEVEL >= 3. Declared in
// native_lstm.py.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"
#include "nativeops/ops/native_lstm.h"

namespace nativeops::tuned {

template <class T>
void native_lstm2(Device& dev, In<T, 3> z, In<T, 2> w_re, In<bool, 2> mask, In<T, 2> h_0,
                  In<T, 2> c_0, Out<T, 3> output, Out<T, 2> h_n, Out<T, 2> c_n, Out<T, 3> gates,
                  Out<T, 3> cells, int64_t start, int64_t stride, bool reverse, bool resets,
                  int64_t precision) {
  Layer<T> layer = native_layer(z, w_re, h_0, c_0, precision);
  layer.sums = z;
  const Steps<T> steps(dev, mask, {start, stride, reverse, resets}, layer);
  tuned::recurrent_layer<NativeLstmCell, T>(dev, layer, {output, h_n, c_n, gates, cells});
}

template <class T>
void native_lstm2_grad(Device& dev, In<T, 2> w_re, In<T, 3> output, In<T, 3> gates, In<T, 3> cells,
                       In<T, 3> d_output, In<T, 2> d_h_n, In<T, 2> d_c_n, In<bool, 2> mask,
                       In<T, 2> h_0, In<T, 2> c_0, Out<T, 3> d_z, Out<T, 2> d_w_re, Out<T, 2> d_h_0,
                       Out<T, 2> d_c_0, int64_t start, int64_t stride, bool reverse, bool resets,
                       int64_t precision) {
  Layer<T> layer = native_layer(gates, w_re, h_0, c_0, precision);
  const Steps<T> steps(dev, mask, {start, stride, reverse, resets}, layer);
  tuned::recurrent_layer_grad<NativeLstmCell, T>(
      dev, layer, {output, gates, cells, d_output, d_h_n, d_c_n},
      {{}, {}, transpose(d_w_re), {}, {}, d_h_0, d_c_0, {}, {}, {}, d_z});
}

template <class T>
void lstm_low_mem(Device& dev, In<T, 3> x, In<T, 2> w_in, In<T, 2> w_re, In<T, 1> bias,
                  In<bool, 2> mask, In<T, 2> h_0, In<T, 2> c_0, Out<T, 3> output, Out<T, 2> h_n,
                  Out<T, 2> c_n, Out<T, 3> cells, int64_t start, int64_t stride, bool reverse,
                  int64_t precision) {
  Layer<T> layer{x, transpose(w_in), transpose(w_re), bias, {}, h_0, c_0, {}, false, false};
  layer.high = precision == kHigh;
  const Steps<T> steps(dev, mask, {start, stride, reverse, false}, layer);
  tuned::recurrent_layer<NativeLstmCell, T>(dev, layer, {output, h_n, c_n, {}, cells});
}

template <class T>
void lstm_low_mem_grad(Device& dev, In<T, 3> x, In<T, 2> w_in, In<T, 2> w_re, In<T, 1> bias,
                       In<T, 3> output, In<T, 3> cells, In<T, 3> d_output, In<T, 2> d_h_n,
                       In<T, 2> d_c_n, In<bool, 2> mask, In<T, 2> h_0, In<T, 2> c_0, Out<T, 3> d_x,
                       Out<T, 2> d_w_in, Out<T, 2> d_w_re, Out<T, 1> d_bias, Out<T, 2> d_h_0,
                       Out<T, 2> d_c_0, int64_t start, int64_t stride, bool reverse,
                       int64_t precision) {
  Layer<T> layer{x, transpose(w_in), transpose(w_re), bias, {}, h_0, c_0, {}, false, false};
  layer.high = precision == kHigh;
  const Steps<T> steps(dev, mask, {start, stride, reverse, false}, layer);
  tuned::recurrent_layer_grad<NativeLstmCell, T>(
      dev, layer, {output, {}, cells, d_output, d_h_n, d_c_n},
      {d_x, transpose(d_w_in), transpose(d_w_re), d_bias, {}, d_h_0, d_c_0});
}

}  // namespace nativeops::tuned
