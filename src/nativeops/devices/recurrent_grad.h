// SPDX-License-Identifier: Apache-2.0
// The gradient of the recurrent layer on every device, generic over its cell: the definition.
#pragma once
#include <cstdint>

#include "nativeops/devices/recurrent.h"

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
};

// Derivatives of the activations, from their values.
template <class T>
HOST_DEVICE T sigmoid_slope(T value) {
  return value * (1 - value);
}
template <class T>
HOST_DEVICE T tanh_slope(T value) {
  return 1 - value * value;
}

template <class T>
HOST_DEVICE T relu_slope(T value) {
  return value > 0 ? T(1) : T(0);
}

namespace recurrence {

// Columns [first, first + count) of a matrix, and rows of it.
template <class T>
HOST_DEVICE View<T, 2> columns(View<T, 2> m, int64_t first, int64_t count) {
  return {m.data + first * m.stride(1), {m.size(0), count}, {m.stride(0), m.stride(1)}};
}
template <class T>
HOST_DEVICE View<T, 2> rows(View<T, 2> m, int64_t first, int64_t count) {
  return {m.data + first * m.stride(0), {count, m.size(1)}, {m.stride(0), m.stride(1)}};
}

// out += a·c
struct AddTo : Plus {
  template <class A, class At>
  HOST_DEVICE A finish(A sum, At at) const {
    return sum + at;
  }
};
template <class T, class Ta, class Tc>
void multiply_add(Device& dev, Out<T, 2> out, View<Ta, 2> a, View<Tc, 2> c) {
  using A = Accum<T>;
  contract(
      dev, one(out), one(a), one(c), one(out), [] KERNEL(A a, A c, A) { return a * c; }, AddTo{});
}

// The gradients of the gates of all frames, time by time, and what they were multiplied with.
template <class Cell, class T>
struct Trace {
  using A = Accum<T>;
  Workspace<A> memory;
  Out<A, 3> parts;        // t b parts·h
  Out<A, 3> h_before, x;  // t b h, t b i
  Out<A, 2> d_h, d_c;     // b h

  Trace(Device& dev, const Layer<T>& layer)
      : memory(dev.template workspace<A>(
            layer.batch() * (layer.steps() * ((Cell::kParts + 1) * layer.units() + layer.inputs()) +
                             2 * layer.units()))) {
    const int64_t n = layer.batch(), steps = layer.steps(), units = layer.units();
    parts = dense(memory.data(), steps, n, Cell::kParts * units);
    h_before = dense(parts.data + parts.count(), steps, n, units);
    x = dense(h_before.data + h_before.count(), steps, n, layer.inputs());
    d_h = dense(x.data + x.count(), n, units);
    d_c = dense(d_h.data + d_h.count(), n, units);
  }
};
// All frames as the rows of one matrix.
template <class A>
HOST_DEVICE View<A, 2> frames(View<A, 3> all) {
  return {all.data, {all.size(0) * all.size(1), all.size(2)}, {all.size(2), 1}};
}

template <class Cell, class T>
void begin_back(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                const Trace<Cell, T>& trace) {
  using A = Accum<T>;
  const auto d_h = trace.d_h, d_c = trace.d_c;
  const auto h_before = trace.h_before, x = trace.x;
  for_each(dev, d_h, [=] KERNEL(int64_t b, int64_t j) {
    d_h(b, j) = value_or_zero(from.d_h_n, b, j);
    d_c(b, j) = Cell::kHasCell ? value_or_zero(from.d_c_n, b, j) : A(0);
  });
  for_each(dev, h_before, [=] KERNEL(int64_t t, int64_t b, int64_t j) {
    const int64_t before = layer.reverse ? t + 1 : t - 1;
    const bool inside = before >= 0 && before < layer.length(b);
    const A state = inside ? A(from.y(before, b, j)) : value_or_zero(layer.h_0, b, j);
    h_before(t, b, j) = t < layer.length(b) ? state : A(0);
  });
  // What lies beyond the end may be anything, NaN too, and takes no part in the products.
  for_each(dev, x, [=] KERNEL(int64_t t, int64_t b, int64_t i) {
    x(t, b, i) = t < layer.length(b) ? A(layer.x(t, b, i)) : A(0);
  });
}

// Where the forward pass kept no gates they are computed again, into where their gradients will be:
// all states are known, so that all frames are one product.
template <class Cell, class T>
void recompute(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
               const Trace<Cell, T>& trace) {
  using A = Accum<T>;
  static_assert(Cell::kKept == 0 || Cell::kKept == Cell::kParts,
                "gates and gradients share memory");
  const int64_t units = layer.units(), width = Cell::kGates * units;
  const int64_t all = layer.steps() * layer.batch();
  auto memory = dev.template workspace<A>(2 * all * width);
  const Out<A, 2> from_x = dense(memory.data(), all, width);
  const Out<A, 2> from_h = dense(memory.data() + all * width, all, width);
  multiply(dev, from_x, frames(trace.x), transpose(layer.w_ih));
  multiply(dev, from_h, frames(trace.h_before), transpose(layer.w_hh));
  const auto parts = trace.parts, h_before = trace.h_before;
  for_each(
      dev, h_before,
      [=] KERNEL(int64_t t, int64_t b, int64_t j) {
        if (t >= layer.length(b)) return;
        const int64_t before = layer.reverse ? t + 1 : t - 1, row = t * layer.batch() + b;
        const bool inside = before >= 0 && before < layer.length(b);
        A in[Cell::kGates], state[Cell::kGates], kept[Cell::kKept + 1], cell = A(0);
        for (int g = 0; g < Cell::kGates; ++g) {
          const int64_t k = g * units + j;
          in[g] = from_x(row, k) + bias(layer.b_ih, k);
          state[g] = from_h(row, k) + bias(layer.b_hh, k);
        }
        if (Cell::kHasCell) {
          cell = inside ? A(from.cells(before, b, j)) : value_or_zero(layer.c_0, b, j);
        }
        Cell::forward(in, state, h_before(t, b, j), cell, kept);
        for (int q = 0; q < Cell::kKept; ++q) parts(t, b, q * units + j) = kept[q];
      },
      100);
}

// The chain rule of `advance`. d_h is on entry what arrives at the state after step s from later
// steps, in the end what passes by the gates to the state before it; their own follows as a
// product.
template <class Cell, class T>
void retreat(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
             const Trace<Cell, T>& trace, int64_t s) {
  using A = Accum<T>;
  const auto d_h = trace.d_h, d_c = trace.d_c;
  const auto parts = trace.parts, h_before = trace.h_before;
  const int64_t units = layer.units();
  for_each(
      dev, d_h,
      [=] KERNEL(int64_t b, int64_t j) {
        if (s >= layer.length(b)) {
          for (int p = 0; p < Cell::kParts; ++p) parts(s, b, p * units + j) = A(0);
          return;
        }
        const int64_t t = layer.time(s, b), before = layer.reverse ? t + 1 : t - 1;
        A kept[Cell::kKept + 1], part[Cell::kParts], cell = A(0), cell_before = A(0),
                                                     d_cell = d_c(b, j);
        for (int q = 0; q < Cell::kKept; ++q) {
          const int64_t k = q * units + j;
          kept[q] = from.gates ? A(from.gates(t, b, k)) : parts(t, b, k);
        }
        if (Cell::kHasCell) {
          cell = A(from.cells(t, b, j));
          cell_before = s > 0 ? A(from.cells(before, b, j)) : value_or_zero(layer.c_0, b, j);
        }
        const A d_out = d_h(b, j) + A(from.d_y(t, b, j));
        d_h(b, j) = Cell::backward(kept, A(from.y(t, b, j)), h_before(t, b, j), cell, cell_before,
                                   d_out, d_cell, part);
        d_c(b, j) = d_cell;
        for (int p = 0; p < Cell::kParts; ++p) parts(t, b, p * units + j) = part[p];
      },
      100);
}

// Σ over the gates of their gradients times rows of their weights, added to `out`.
template <class Cell, class T, class To>
void add_products(Device& dev, Out<To, 2> out, In<Accum<T>, 2> parts, In<T, 2> weight,
                  const int* part, int64_t units) {
  for (int g = 0; g < Cell::kGates; ++g) {
    multiply_add(dev, out, columns(parts, part[g] * units, units), rows(weight, g * units, units));
  }
}

// The step whose frames are all those of a time only lies at that time where nothing is reversed,
// so a step's gradients are gathered.
template <class Cell, class T>
void retreat_state(Device& dev, const Layer<T>& layer, const Trace<Cell, T>& trace,
                   Out<Accum<T>, 2> gathered, int64_t s) {
  using A = Accum<T>;
  const auto parts = trace.parts;
  for_each(dev, gathered, [=] KERNEL(int64_t b, int64_t k) {
    gathered(b, k) = s < layer.length(b) ? parts(layer.time(s, b), b, k) : A(0);
  });
  add_products<Cell, T>(dev, trace.d_h, In<A, 2>(gathered), layer.w_hh, Cell::kStatePart,
                        layer.units());
}

// The gradient of a weight matrix, gate by gate, and that of a bias.
template <class T>
void weight_grad(Device& dev, Out<T, 2> to, In<Accum<T>, 2> parts, In<Accum<T>, 2> right,
                 const int* part, int gates) {
  const int64_t units = to.size(0) / gates;
  for (int g = 0; to && g < gates; ++g) {
    multiply(dev, rows(to, g * units, units), transpose(columns(parts, part[g] * units, units)),
             right);
  }
}
template <class T>
void bias_grad(Device& dev, Out<T, 1> to, In<Accum<T>, 2> parts, const int* part, int gates) {
  using A = Accum<T>;
  const int64_t units = to ? to.size(0) / gates : 0;
  for (int g = 0; to && g < gates; ++g) {
    const In<A, 2> own = columns(parts, part[g] * units, units);
    const Out<T, 1> gate{to.data + g * units * to.stride(0), {units}, {to.stride(0)}};
    for_each(
        dev, gate,
        [=] KERNEL(int64_t j) {
          A total = 0;
          for (int64_t i = 0; i < own.size(0); ++i) total += own(i, j);
          gate(j) = T(total);
        },
        parts.size(0));
  }
}

}  // namespace recurrence

// The chain rule of the lines above, from the last step to the first.
template <class Cell, class T>
void recurrent_layer_grad(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                          const LayerGrads<T>& to) {
  using namespace recurrence;
  using A = Accum<T>;
  check_lengths(layer);
  const Trace<Cell, T> trace(dev, layer);
  auto memory = dev.template workspace<A>(layer.batch() * Cell::kParts * layer.units());
  const Out<A, 2> gathered = dense(memory.data(), layer.batch(), Cell::kParts * layer.units());
  begin_back(dev, layer, from, trace);
  if (Cell::kKept > 0 && !from.gates) recompute(dev, layer, from, trace);
  for (int64_t s = layer.steps() - 1; s >= 0; --s) {
    retreat(dev, layer, from, trace, s);
    retreat_state(dev, layer, trace, gathered, s);
  }
  const In<A, 2> parts = frames(In<A, 3>(trace.parts));
  weight_grad(dev, to.w_ih, parts, frames(In<A, 3>(trace.x)), Cell::kInputPart, Cell::kGates);
  weight_grad(dev, to.w_hh, parts, frames(In<A, 3>(trace.h_before)), Cell::kStatePart,
              Cell::kGates);
  bias_grad(dev, to.b_ih, parts, Cell::kInputPart, Cell::kGates);
  bias_grad(dev, to.b_hh, parts, Cell::kStatePart, Cell::kGates);
  if (to.x) {
    const Out<A, 2> d_x = frames(trace.x);  // of which the weights have no more need
    for_each(dev, d_x, [=] KERNEL(int64_t i, int64_t j) { d_x(i, j) = A(0); });
    add_products<Cell, T>(dev, d_x, parts, layer.w_ih, Cell::kInputPart, layer.units());
    const auto sums = trace.x;
    for_each(dev, to.x,
             [=] KERNEL(int64_t t, int64_t b, int64_t i) { to.x(t, b, i) = T(sums(t, b, i)); });
  }
  const auto d_h = trace.d_h, d_c = trace.d_c;
  for_each(dev, d_h, [=] KERNEL(int64_t b, int64_t j) {
    if (to.h_0) to.h_0(b, j) = T(d_h(b, j));
    if (Cell::kHasCell && to.c_0) to.c_0(b, j) = T(d_c(b, j));
  });
}

}  // namespace nativeops
