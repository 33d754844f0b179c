// SPDX-License-Identifier: Apache-2.0
// RETURNN's NativeLstm, NativeLstm2 and LstmLowMem: an LSTM layer that steps over the frames that a
// mask leaves out. Declared in native_lstm.py.
#pragma once
#include "nativeops/devices/recurrent_grad.h"
#include "nativeops/ops/lstm.h"

namespace nativeops {

// The LSTM's cell with its gates in the order g, i, f, o.
struct NativeLstmCell : LstmCell {
  static constexpr int kOwn = 0;

  template <class V, class Own>
  HOST_DEVICE static V forward(const V* x, const V* h, V before, V& c, V* kept, const Own& own) {
    const V own_x[] = {x[1], x[2], x[0], x[3]}, own_h[] = {h[1], h[2], h[0], h[3]};
    V own_kept[4];
    const V out = LstmCell::forward(own_x, own_h, before, c, own_kept, own);
    put_back(own_kept, kept);
    return out;
  }
  template <class V, class Own>
  HOST_DEVICE static V backward(const V* kept, V out, V state, V c, V c_before, V d_h, V& d_c,
                                V* part, const Own& own) {
    const V own_kept[] = {kept[1], kept[2], kept[0], kept[3]};
    V own_part[4];
    const V past = LstmCell::backward(own_kept, out, state, c, c_before, d_h, d_c, own_part, own);
    put_back(own_part, part);
    return past;
  }

 private:
  template <class V>
  HOST_DEVICE static void put_back(const V* from, V* to) {
    to[0] = from[2], to[1] = from[0], to[2] = from[1], to[3] = from[3];
  }
};

// Which frames are visited: from `start` on every stride-th, counted from the end if `reverse`. Of
// these, steps are those that the mask does not leave out.
struct Walk {
  int64_t start, stride;
  bool reverse, resets;
};

// order and lengths as Layer has them
inline void take_in_order(Device& dev, In<bool, 2> mask, const Walk& walk, Out<int32_t, 2> order,
                          Out<int32_t, 1> lengths) {
  const int64_t steps = order.size(0), start = min2(walk.start, steps);
  const int64_t stride = min2(walk.stride, max2<int64_t>(1, steps));
  for_each(
      dev, lengths,
      [=] KERNEL(int64_t b) {
        const auto time = [=](int64_t k) {
          return static_cast<int32_t>(walk.reverse ? steps - 1 - k : k);
        };
        const auto takes_part = [=](int64_t k) { return !mask || mask(time(k), b); };
        int64_t count = 0;
        bool anew = false;
        for (int64_t k = start; k < steps; k += stride) {
          if (takes_part(k)) order(count++, b) = anew ? ~time(k) : time(k);
          anew = walk.resets && !takes_part(k);
        }
        lengths(b) = static_cast<int32_t>(count);
        for (int64_t k = 0; k < steps; ++k) {
          const bool visited = k >= start && (k - start) % stride == 0;
          if (!visited || !takes_part(k)) order(count++, b) = time(k);
        }
      },
      4 * steps);
}

// The memory of the order in which a layer takes its frames.
template <class T>
class Steps {
 public:
  Steps(Device& dev, In<bool, 2> mask, const Walk& walk, Layer<T>& layer)
      : plain_(!mask && walk.start == 0 && walk.stride == 1),
        memory_(dev.template workspace<int32_t>(plain_ ? 0 : (layer.steps() + 1) * layer.batch())) {
    layer.reverse = walk.reverse;
    if (plain_) return;
    const Out<int32_t, 2> order = dense(memory_.data(), layer.steps(), layer.batch());
    const Out<int32_t, 1> lengths = dense(order.data + order.count(), layer.batch());
    take_in_order(dev, mask, walk, order, lengths);
    layer.order = order;
    layer.lengths = lengths;
  }

 private:
  bool plain_;
  Workspace<int32_t> memory_;
};

template <class T, class Engine = RecurrentEngine>
void native_lstm2(Device& dev, In<T, 3> z, In<T, 2> w_re, In<bool, 2> mask, In<T, 2> h_0,
                  In<T, 2> c_0, Out<T, 3> output, Out<T, 2> h_n, Out<T, 2> c_n, Out<T, 3> gates,
                  Out<T, 3> cells, int64_t start, int64_t stride, bool reverse, bool resets,
                  int64_t precision) {
  Layer<T> layer = layer_without_inputs(z, transpose(w_re), h_0, c_0);
  layer.sums = z;
  layer.high = precision == kHigh;
  const Steps<T> steps(dev, mask, {start, stride, reverse, resets}, layer);
  Engine::template layer<NativeLstmCell, T>(dev, layer, {output, h_n, c_n, gates, cells});
}

template <class T, class Engine = RecurrentEngine>
void native_lstm2_grad(Device& dev, In<T, 2> w_re, In<T, 3> output, In<T, 3> gates, In<T, 3> cells,
                       In<T, 3> d_output, In<T, 2> d_h_n, In<T, 2> d_c_n, In<bool, 2> mask,
                       In<T, 2> h_0, In<T, 2> c_0, Out<T, 3> d_z, Out<T, 2> d_w_re, Out<T, 2> d_h_0,
                       Out<T, 2> d_c_0, int64_t start, int64_t stride, bool reverse, bool resets,
                       int64_t precision) {
  Layer<T> layer = layer_without_inputs(gates, transpose(w_re), h_0, c_0);
  layer.high = precision == kHigh;
  const Steps<T> steps(dev, mask, {start, stride, reverse, resets}, layer);
  Engine::template layer_grad<NativeLstmCell, T>(
      dev, layer, {output, gates, cells, d_output, d_h_n, d_c_n},
      {{}, {}, transpose(d_w_re), {}, {}, d_h_0, d_c_0, {}, {}, {}, d_z});
}

template <class T, class Engine = RecurrentEngine>
void lstm_low_mem(Device& dev, In<T, 3> x, In<T, 2> w_in, In<T, 2> w_re, In<T, 1> bias,
                  In<bool, 2> mask, In<T, 2> h_0, In<T, 2> c_0, Out<T, 3> output, Out<T, 2> h_n,
                  Out<T, 2> c_n, Out<T, 3> cells, int64_t start, int64_t stride, bool reverse,
                  int64_t precision) {
  Layer<T> layer{x, transpose(w_in), transpose(w_re), bias, {}, h_0, c_0, {}, false, false};
  layer.high = precision == kHigh;
  const Steps<T> steps(dev, mask, {start, stride, reverse, false}, layer);
  Engine::template layer<NativeLstmCell, T>(dev, layer, {output, h_n, c_n, {}, cells});
}

template <class T, class Engine = RecurrentEngine>
void lstm_low_mem_grad(Device& dev, In<T, 3> x, In<T, 2> w_in, In<T, 2> w_re, In<T, 1> bias,
                       In<T, 3> output, In<T, 3> cells, In<T, 3> d_output, In<T, 2> d_h_n,
                       In<T, 2> d_c_n, In<bool, 2> mask, In<T, 2> h_0, In<T, 2> c_0, Out<T, 3> d_x,
                       Out<T, 2> d_w_in, Out<T, 2> d_w_re, Out<T, 1> d_bias, Out<T, 2> d_h_0,
                       Out<T, 2> d_c_0, int64_t start, int64_t stride, bool reverse,
                       int64_t precision) {
  Layer<T> layer{x, transpose(w_in), transpose(w_re), bias, {}, h_0, c_0, {}, false, false};
  layer.high = precision == kHigh;
  const Steps<T> steps(dev, mask, {start, stride, reverse, false}, layer);
  Engine::template layer_grad<NativeLstmCell, T>(
      dev, layer, {output, {}, cells, d_output, d_h_n, d_c_n},
      {d_x, transpose(d_w_in), transpose(d_w_re), d_bias, {}, d_h_0, d_c_0});
}

}  // namespace nativeops
