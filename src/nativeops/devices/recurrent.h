// SPDX-License-Identifier: Apache-2.0
// The recurrent layer and its gradient on every device, generic over its cell (ops/*.h): the
// definition. In each step one product of the states with the weights, then the cell's formula;
// sequences whose end is past keep their state.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "nativeops/devices/kernel.h"

namespace nativeops {

// "high" among the choices of `precision` in ops/_steps.py.
constexpr int64_t kHigh = 2;

// What an op gets: one layer in one direction. Optional inputs have size 0.
template <class T>
struct Layer {
  In<T, 3> x;           // t b i
  In<T, 2> w_ih, w_hh;  // gates·h i, gates·h h
  In<T, 1> b_ih, b_hh;  // gates·h
  In<T, 2> h_0, c_0;    // b h
  In<int32_t, 1> lengths;
  bool reverse;
  bool high = false;  // products of float may be sums of three of bf16; here they are not

  HOST_DEVICE int64_t steps() const { return x.size(0); }
  HOST_DEVICE int64_t batch() const { return x.size(1); }
  HOST_DEVICE int64_t inputs() const { return x.size(2); }
  HOST_DEVICE int64_t units() const { return w_hh.size(1); }
  HOST_DEVICE int64_t length(int64_t b) const {
    return lengths ? min2<int64_t>(max2<int64_t>(lengths(b), 0), steps()) : steps();
  }
  // Where a sequence is in its step s: backwards it begins at its own end.
  HOST_DEVICE int64_t time(int64_t s, int64_t b) const { return reverse ? length(b) - 1 - s : s; }
};

// What it makes. Training keeps the activated gates and the cells.
template <class T>
struct States {
  Out<T, 3> y;             // t b h
  Out<T, 2> h_n, c_n;      // b h
  Out<T, 3> gates, cells;  // t b kept·h, t b h
};

// NaN stays NaN.
template <class T>
HOST_DEVICE T relu(T value) {
  return value < 0 ? T(0) : value;
}
namespace recurrence {

// A value of an optional state: zero where it was not given.
template <class T>
HOST_DEVICE Accum<T> value_or_zero(const In<T, 2>& state, int64_t b, int64_t j) {
  return state ? Accum<T>(state(b, j)) : Accum<T>(0);
}
template <class T>
HOST_DEVICE Accum<T> bias(const In<T, 1>& values, int64_t j) {
  return values ? Accum<T>(values(j)) : Accum<T>(0);
}

// A matrix as one batch item of `contract`.
template <class T>
HOST_DEVICE View<T, 3> one(View<T, 2> m) {
  return {m.data, {1, m.size(0), m.size(1)}, {0, m.stride(0), m.stride(1)}};
}
// out = a·c
template <class T, class Ta, class Tc>
void multiply(Device& dev, Out<T, 2> out, View<Ta, 2> a, View<Tc, 2> c) {
  using A = Accum<T>;
  contract(dev, one(out), one(a), one(c), [] KERNEL(A a, A c) { return a * c; });
}
// The states between two steps, and the inputs and products of one.
template <class Cell, class T>
struct Work {
  using A = Accum<T>;
  Workspace<A> memory;
  Out<A, 2> x, from_x, from_h, h, c;

  Work(Device& dev, const Layer<T>& layer)
      : memory(dev.template workspace<A>(
            layer.batch() *
            (layer.inputs() + (2 * Cell::kGates + 2) * max2<int64_t>(layer.units(), 1)))) {
    const int64_t n = layer.batch(), units = layer.units();
    A* next = memory.data();
    auto take = [&](int64_t width) {
      const Out<A, 2> view = dense(next, n, width);
      next += n * width;
      return view;
    };
    x = take(layer.inputs());
    from_x = take(Cell::kGates * units);
    from_h = take(Cell::kGates * units);
    h = take(units);
    c = take(units);
  }
};

template <class Cell, class T>
void begin(Device& dev, const Layer<T>& layer, const Work<Cell, T>& work) {
  const auto h = work.h, c = work.c;
  for_each(dev, h, [=] KERNEL(int64_t b, int64_t j) {
    h(b, j) = value_or_zero(layer.h_0, b, j);
    c(b, j) = Cell::kHasCell ? value_or_zero(layer.c_0, b, j) : Accum<T>(0);
  });
}

template <class Cell, class T>
void advance(Device& dev, const Layer<T>& layer, const States<T>& to, const Work<Cell, T>& work,
             int64_t s) {
  using A = Accum<T>;
  const auto x = work.x, from_x = work.from_x, from_h = work.from_h, h = work.h, c = work.c;
  for_each(dev, x, [=] KERNEL(int64_t b, int64_t i) {
    x(b, i) = s < layer.length(b) ? A(layer.x(layer.time(s, b), b, i)) : A(0);
  });
  multiply(dev, from_x, x, transpose(layer.w_ih));
  multiply(dev, from_h, h, transpose(layer.w_hh));
  const int64_t units = layer.units();
  for_each(
      dev, h,
      [=] KERNEL(int64_t b, int64_t j) {
        if (s >= layer.length(b)) {  // beyond the end, where s is also the time
          to.y(s, b, j) = T(A(0));
          for (int q = 0; to.gates && q < Cell::kKept; ++q) to.gates(s, b, q * units + j) = T(A(0));
          if (Cell::kHasCell && to.cells) to.cells(s, b, j) = T(A(0));
          return;
        }
        const int64_t t = layer.time(s, b);
        A in[Cell::kGates], state[Cell::kGates], kept[Cell::kKept + 1], cell = c(b, j);
        for (int g = 0; g < Cell::kGates; ++g) {
          const int64_t k = g * units + j;
          in[g] = from_x(b, k) + bias(layer.b_ih, k);
          state[g] = from_h(b, k) + bias(layer.b_hh, k);
        }
        const A out = Cell::forward(in, state, h(b, j), cell, kept);
        h(b, j) = out;
        c(b, j) = cell;
        to.y(t, b, j) = T(out);
        for (int q = 0; to.gates && q < Cell::kKept; ++q) {
          to.gates(t, b, q * units + j) = T(kept[q]);
        }
        if (Cell::kHasCell && to.cells) to.cells(t, b, j) = T(cell);
      },
      100);
}

// A length that is none is refused here where memory can be read, and kept within bounds elsewhere.
template <class T>
void check_lengths(const Layer<T>& layer) {
#if !defined(__CUDACC__)
  for (int64_t b = 0; b < layer.lengths.size(0); ++b) {
    const int64_t length = layer.lengths(b);
    if (length >= 0 && length <= layer.steps()) continue;
    throw std::runtime_error("`lengths[" + std::to_string(b) + "]` is " + std::to_string(length) +
                             ", but must be from 0 to " + std::to_string(layer.steps()) +
                             ", the steps of `x`.");
  }
#else
  (void)layer;
#endif
}

}  // namespace recurrence

// y[t] = h of step s at t = time(s), h = Cell::forward(W_ih x[t] + b_ih, W_hh h + b_hh, h, c)
template <class Cell, class T>
void recurrent_layer(Device& dev, const Layer<T>& layer, const States<T>& to) {
  using namespace recurrence;
  check_lengths(layer);
  const Work<Cell, T> work(dev, layer);
  begin(dev, layer, work);
  for (int64_t s = 0; s < layer.steps(); ++s) advance(dev, layer, to, work, s);
  const auto h = work.h, c = work.c;
  for_each(dev, to.h_n, [=] KERNEL(int64_t b, int64_t j) {
    to.h_n(b, j) = T(h(b, j));
    if (Cell::kHasCell) to.c_n(b, j) = T(c(b, j));
  });
}

}  // namespace nativeops
