// SPDX-License-Identifier: Apache-2.0
// What the gradient of a recurrent layer knows of all frames: what was kept, what the weights were
// multiplied with, and the gates where they were not kept.
#pragma once
#include <cstdint>

#include "nativeops/devices/recurrent.h"
#include "nativeops/devices/slopes.h"

namespace nativeops {

// What arrives at the results, and what the forward pass left.
template <class T>
struct Arrived {
  In<T, 3> y, gates, cells;
  In<T, 3> d_y;
  In<T, 2> d_h_n, d_c_n;
};

// The gradients. Those without memory are not wanted.
template <class T>
struct LayerGrads {
  Out<T, 3> x;
  Out<T, 2> w_ih, w_hh;
  Out<T, 1> b_ih, b_hh;
  Out<T, 2> h_0, c_0;
  Out<T, 2> w_second{};
  Out<T, 1> b_second{}, own{};
  Out<T, 3> sums{};
};

namespace recurrence {

// How products of all frames are made: c = a·b + beta·c.
struct Gemm {
  template <class Ta, class Tb, class T>
  void operator()(Device& dev, View<Ta, 2> a, View<Tb, 2> b, View<T, 2> c, double beta = 0) const {
    gemm(dev, a, b, c, 1, beta);
  }
};

// The gradients of the gates of all frames, time by time, and what they were multiplied with, as
// numbers of type P. With a second product, that of its sum stands behind those of the gates.
template <class Cell, class T, class P = Accum<T>>
struct Trace {
  using A = Accum<T>;
  Workspace<P> frames;
  Workspace<A> sums;
  Out<P, 3> parts;                // t b parts·h (+ p)
  Out<P, 3> h_before, x, middle;  // t b p, t b i, t b h
  Out<A, 2> d_h, d_c, d_middle;   // b p, b h, b h

  Trace(Device& dev, const Layer<T>& layer)
      : frames(dev.template workspace<P>(
            layer.batch() * layer.steps() *
            (row(layer) + layer.width() + layer.inputs() + Cell::kSecond * layer.units()))),
        sums(dev.template workspace<A>(layer.batch() * (layer.width() + 2 * layer.units()))) {
    const int64_t n = layer.batch(), steps = layer.steps(), units = layer.units();
    parts = dense(frames.data(), steps, n, row(layer));
    h_before = dense(parts.data + parts.count(), steps, n, layer.width());
    x = dense(h_before.data + h_before.count(), steps, n, layer.inputs());
    middle = dense(x.data + x.count(), steps, n, Cell::kSecond * units);
    d_h = dense(sums.data(), n, layer.width());
    d_c = dense(d_h.data + d_h.count(), n, units);
    d_middle = dense(d_c.data + d_c.count(), n, units);
  }
  static int64_t row(const Layer<T>& layer) {
    return Cell::kParts * layer.units() + Cell::kSecond * layer.width();
  }
};
// All frames as the rows of one matrix.
template <class A>
HOST_DEVICE View<A, 2> frames(View<A, 3> all) {
  return {all.data, {all.size(0) * all.size(1), all.size(2)}, {all.size(2), 1}};
}

template <class Cell, class T, class P>
void begin_back(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                const Trace<Cell, T, P>& trace) {
  using A = Accum<T>;
  const auto d_h = trace.d_h, d_c = trace.d_c;
  const auto h_before = trace.h_before, x = trace.x;
  for_each(dev, d_h,
           [=] KERNEL(int64_t b, int64_t j) { d_h(b, j) = value_or_zero(from.d_h_n, b, j); });
  for_each(dev, d_c, [=] KERNEL(int64_t b, int64_t j) {
    d_c(b, j) = Cell::kHasCell ? value_or_zero(from.d_c_n, b, j) : A(0);
  });
  for_each(dev, h_before, [=] KERNEL(int64_t s, int64_t b, int64_t j) {
    P& state = h_before(layer.time(s, b), b, j);
    if (s >= layer.length(b) || layer.begins_anew(s, b)) {
      state = P(A(0));
    } else {
      state = P(s > 0 ? A(from.y(layer.time(s - 1, b), b, j)) : value_or_zero(layer.h_0, b, j));
    }
  });
  // What lies beyond the end may be anything, NaN too, and takes no part in the products.
  for_each(dev, x, [=] KERNEL(int64_t s, int64_t b, int64_t i) {
    const int64_t t = layer.time(s, b);
    x(t, b, i) = P(s < layer.length(b) ? A(layer.x(t, b, i)) : A(0));
  });
}

// The cell before a step that is inside of its sequence.
template <class T, class K = Accum<T>>
HOST_DEVICE K cell_before(const Layer<T>& layer, const Arrived<T>& from, int64_t s, int64_t b,
                          int64_t j) {
  if (s > 0) return K(from.cells(layer.time(s - 1, b), b, j));
  return layer.c_0 ? K(layer.c_0(b, j)) : K(Accum<T>(0));
}

// Where the forward pass kept no gates they are computed again, into where their gradients will be:
// all states are known, so that all frames are one product.
template <class Cell, class T, class P, class Multiply = Gemm>
void recompute(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
               const Trace<Cell, T, P>& trace, Multiply multiply = {}) {
  using A = Accum<T>;
  static_assert(Cell::kKept == 0 || Cell::kKept == Cell::kParts + Cell::kKeptLate,
                "gates and gradients share memory");
  const int64_t units = layer.units(), all = layer.steps() * layer.batch();
  const int64_t both = (Cell::kGates + Cell::kStateGates) * units;
  auto memory = dev.template workspace<A>(all * (both + Cell::kSecond * layer.width()));
  const Out<A, 2> from_x = dense(memory.data(), all, Cell::kGates * units);
  const Out<A, 2> from_h = dense(from_x.data + from_x.count(), all, Cell::kStateGates * units);
  multiply(dev, frames(trace.x), transpose(layer.w_ih), from_x);
  multiply(dev, frames(trace.h_before), transpose(layer.w_hh), from_h);
  const auto parts = trace.parts, h_before = trace.h_before, middle = trace.middle;
  const View<A, 3> each = dense(memory.data(), layer.steps(), layer.batch(), units);
  for_each(
      dev, each,
      [=] KERNEL(int64_t s, int64_t b, int64_t j) {
        const bool inside = s < layer.length(b);
        const int64_t t = layer.time(s, b), row = t * layer.batch() + b;
        A in[Cell::kGates], state[Cell::kStateGates], kept[Cell::kKept + 1], cell = A(0);
        gate_sums<Cell>(layer, from_x, from_h, row, t, b, j, in, state);
        if (Cell::kHasCell && inside) cell = cell_before(layer, from, s, b, j);
        const A before = Cell::kReadsState ? A(h_before(t, b, j)) : A(0);
        const A out =
            Cell::forward(in, state, before, cell, kept, OwnWeights<T>{layer.own, j, units});
        if (Cell::kSecond) middle(t, b, j) = P(inside ? out : A(0));
        for (int g = 0; Cell::kSecond && g < Cell::kGates; ++g) from_x(row, g * units + j) = in[g];
        for (int q = 0; inside && q < Cell::kKept - Cell::kKeptLate; ++q) {
          parts(t, b, q * units + j) = P(kept[q]);
        }
      },
      100);
  if constexpr (Cell::kKeptLate > 0) {
    const Out<A, 2> product = dense(from_h.data + from_h.count(), all, layer.width());
    gemm(dev, frames(trace.middle), transpose(layer.w_second), product);
    for_each(dev, h_before, [=] KERNEL(int64_t t, int64_t b, int64_t j) {
      const int64_t row = t * layer.batch() + b;
      A in[Cell::kGates], kept[Cell::kKept + 1];
      for (int g = 0; g < Cell::kGates; ++g) in[g] = from_x(row, g * units + j);
      Cell::finish(in, product(row, j) + value_or_zero(layer.b_second, j), A(h_before(t, b, j)),
                   kept);
      for (int q = Cell::kKept - Cell::kKeptLate; q < Cell::kKept; ++q) {
        parts(t, b, q * units + j) = P(kept[q]);
      }
    });
  }
}

}  // namespace recurrence

}  // namespace nativeops
