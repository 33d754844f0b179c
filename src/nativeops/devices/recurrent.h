// SPDX-License-Identifier: Apache-2.0
// The recurrent layer and its gradient on every device, generic over its cell (ops/*.h): the
// definition. In each step one product of the states with the weights, then the cell's formula, and
// for some cells a second product with what that gave; sequences whose end is past keep their
// state.
#pragma once
#include <cstdint>

#include "nativeops/devices/checks.h"
#include "nativeops/devices/gemm.h"
#include "nativeops/devices/kernel.h"

namespace nativeops {

// "high" among the choices of `precision` in ops/_steps.py.
constexpr int64_t kHigh = 2;

// What an op gets: one layer in one direction. Optional inputs have no memory.
template <class T>
struct Layer {
  In<T, 3> x;           // t b i
  In<T, 2> w_ih, w_hh;  // gates·h i, gates·h p
  In<T, 1> b_ih, b_hh;  // gates·h
  In<T, 2> h_0, c_0;    // b p, b h
  In<int32_t, 1> lengths;
  bool reverse;
  bool high = false;    // products of float may be sums of three of bf16; here they are not
  In<T, 2> w_second{};  // p h: of cells with a second product; without one p is h
  In<T, 1> b_second{};  // p
  In<T, 1> own{};       // own·h: weights of single units
  In<T, 3> sums{};      // t b gates·h: added to the products with the inputs
  // t b: the time of each step, and beyond the length the times left out; ~time of a step that
  // begins with no state, which cells can do whose state passes by the products alone
  In<int32_t, 2> order{};

  HOST_DEVICE int64_t steps() const { return x.size(0); }
  HOST_DEVICE int64_t batch() const { return x.size(1); }
  HOST_DEVICE int64_t inputs() const { return x.size(2); }
  HOST_DEVICE int64_t width() const { return w_hh.size(1); }  // of the state
  HOST_DEVICE int64_t units() const {
    return w_second.size(0) + w_second.size(1) > 0 ? w_second.size(1) : width();
  }
  HOST_DEVICE int64_t length(int64_t b) const { return length_of(lengths, b, steps()); }
  // Where a sequence is in its step s: backwards it begins at its own end. Steps beyond its length
  // stand for the times where it has none.
  HOST_DEVICE int64_t time(int64_t s, int64_t b) const {
    if (order) return order(s, b) < 0 ? ~order(s, b) : order(s, b);
    return reverse && s < length(b) ? length(b) - 1 - s : s;
  }
  HOST_DEVICE bool begins_anew(int64_t s, int64_t b) const {
    return order && s < steps() && order(s, b) < 0;
  }
};

// A layer that multiplies no inputs: `sums` has the products, or is an array with as many steps.
template <class T>
Layer<T> layer_without_inputs(In<T, 3> sums, In<T, 2> w_hh, In<T, 2> h_0, In<T, 2> c_0 = {}) {
  const In<T, 3> x{sums.data, {sums.size(0), sums.size(1), 0}, {0, 0, 1}};
  const In<T, 2> w_ih{w_hh.data, {w_hh.size(0), 0}, {0, 1}};
  return {x, w_ih, w_hh, {}, {}, h_0, c_0, {}, false};
}

// What it makes. Training keeps the activated gates and the cells.
template <class T>
struct States {
  Out<T, 3> y;             // t b p
  Out<T, 2> h_n, c_n;      // b p, b h
  Out<T, 3> gates, cells;  // t b kept·h, t b h
};

// What a cell has unless it says otherwise.
struct CellDefaults {
  static constexpr bool kHasCell = false;     // a state beside the output
  static constexpr bool kReadsState = false;  // its formula, beyond the products
  static constexpr int kOwn = 0;              // weights of each single unit
  // `forward` gives what is multiplied with the second weights; `finish` makes the state of it, and
  // the last kKeptLate of what is kept; `early` begins the way back, with the last kPartsEarly of
  // the gates' gradients.
  static constexpr bool kSecond = false;
  static constexpr int kKeptLate = 0, kPartsEarly = 0;

  // What the second weights were multiplied with, from what was kept, the state and the cell.
  template <class V>
  HOST_DEVICE static V middle(const V*, V, V) {
    return V();
  }
};

// The weights of one unit alone, of which a layer may have none.
template <class T>
struct OwnWeights {
  const In<T, 1>& all;
  int64_t unit, units;

  HOST_DEVICE explicit operator bool() const { return bool(all); }
  HOST_DEVICE Accum<T> operator[](int q) const { return Accum<T>(all(q * units + unit)); }
};

// NaN stays NaN.
template <class T>
HOST_DEVICE T relu(T value) {
  return value < 0 ? T(0) : value;
}
namespace recurrence {

// A number of an optional input: zero where it was not given.
template <class T, int N, class... Index>
HOST_DEVICE Accum<T> value_or_zero(const In<T, N>& values, Index... index) {
  return values ? Accum<T>(values(index...)) : Accum<T>(0);
}

// Both sums of the gates of a unit at a time; row: of the products.
template <class Cell, class T>
HOST_DEVICE void gate_sums(const Layer<T>& layer, const Out<Accum<T>, 2>& from_x,
                           const Out<Accum<T>, 2>& from_h, int64_t row, int64_t t, int64_t b,
                           int64_t j, Accum<T>* in, Accum<T>* state) {
  const int64_t units = layer.units();
  for (int g = 0; g < Cell::kGates; ++g) {
    in[g] = from_x(row, g * units + j) + value_or_zero(layer.b_ih, g * units + j);
    if (layer.sums) in[g] += Accum<T>(layer.sums(t, b, g * units + j));
  }
  for (int g = 0; g < Cell::kStateGates; ++g) {
    state[g] = from_h(row, g * units + j) + value_or_zero(layer.b_hh, g * units + j);
  }
}

// The states between two steps, and the inputs and products of one.
template <class Cell, class T>
struct Work {
  using A = Accum<T>;
  Workspace<A> memory;
  Out<A, 2> x, from_x, from_h, h, c, middle, from_middle;

  Work(Device& dev, const Layer<T>& layer)
      : memory(dev.template workspace<A>(
            layer.batch() * (layer.inputs() + 2 * layer.width() +
                             (Cell::kGates + Cell::kStateGates + 2) * layer.units()))) {
    const int64_t n = layer.batch(), units = layer.units();
    A* next = memory.data();
    auto take = [&](int64_t width) {
      const Out<A, 2> view = dense(next, n, width);
      next += n * width;
      return view;
    };
    x = take(layer.inputs());
    from_x = take(Cell::kGates * units);
    from_h = take(Cell::kStateGates * units);
    h = take(layer.width());
    c = take(units);
    middle = take(units);
    from_middle = take(layer.width());
  }
};

template <class Cell, class T>
void begin(Device& dev, const Layer<T>& layer, const Work<Cell, T>& work) {
  const auto h = work.h, c = work.c;
  for_each(dev, h, [=] KERNEL(int64_t b, int64_t j) {
    h(b, j) = layer.begins_anew(0, b) ? Accum<T>(0) : value_or_zero(layer.h_0, b, j);
  });
  for_each(dev, c, [=] KERNEL(int64_t b, int64_t j) {
    c(b, j) = Cell::kHasCell ? value_or_zero(layer.c_0, b, j) : Accum<T>(0);
  });
}

template <class Cell, class T>
void advance(Device& dev, const Layer<T>& layer, const States<T>& to, const Work<Cell, T>& work,
             int64_t s) {
  using A = Accum<T>;
  const auto x = work.x, from_x = work.from_x, from_h = work.from_h, h = work.h, c = work.c;
  const auto middle = work.middle;
  for_each(dev, x, [=] KERNEL(int64_t b, int64_t i) {
    x(b, i) = s < layer.length(b) ? A(layer.x(layer.time(s, b), b, i)) : A(0);
  });
  gemm(dev, x, transpose(layer.w_ih), from_x);
  gemm(dev, h, transpose(layer.w_hh), from_h);
  const int64_t units = layer.units();
  for_each(
      dev, c,
      [=] KERNEL(int64_t b, int64_t j) {
        const int64_t t = layer.time(s, b);
        if (s >= layer.length(b)) {
          middle(b, j) = A(0);
          if (!Cell::kSecond) to.y(t, b, j) = T(A(0));
          for (int q = 0; to.gates && q < Cell::kKept; ++q) to.gates(t, b, q * units + j) = T(A(0));
          if (Cell::kHasCell && to.cells) to.cells(t, b, j) = T(A(0));
          return;
        }
        A in[Cell::kGates], state[Cell::kStateGates], kept[Cell::kKept + 1], cell = c(b, j);
        gate_sums<Cell>(layer, from_x, from_h, b, t, b, j, in, state);
        const A before = Cell::kReadsState ? h(b, j) : A(0);
        const A out =
            Cell::forward(in, state, before, cell, kept, OwnWeights<T>{layer.own, j, units});
        c(b, j) = cell;
        if (Cell::kSecond) {
          middle(b, j) = out;
          for (int g = 0; g < Cell::kGates; ++g) from_x(b, g * units + j) = in[g];
        } else {
          h(b, j) = layer.begins_anew(s + 1, b) ? A(0) : out;
          to.y(t, b, j) = T(out);
        }
        for (int q = 0; to.gates && q < Cell::kKept - Cell::kKeptLate; ++q) {
          to.gates(t, b, q * units + j) = T(kept[q]);
        }
        if (Cell::kHasCell && to.cells) to.cells(t, b, j) = T(cell);
      },
      100);
}

// The second product, and what the cell makes of it.
template <class Cell, class T>
void advance_second(Device& dev, const Layer<T>& layer, const States<T>& to,
                    const Work<Cell, T>& work, int64_t s) {
  using A = Accum<T>;
  const auto from_x = work.from_x, from_middle = work.from_middle, h = work.h;
  gemm(dev, work.middle, transpose(layer.w_second), from_middle);
  const int64_t units = layer.units();
  for_each(dev, h, [=] KERNEL(int64_t b, int64_t j) {
    const int64_t t = layer.time(s, b);
    if (s >= layer.length(b)) {
      to.y(t, b, j) = T(A(0));
      return;
    }
    A in[Cell::kGates], kept[Cell::kKept + 1];
    for (int g = 0; Cell::kReadsState && g < Cell::kGates; ++g) in[g] = from_x(b, g * units + j);
    const A sum = from_middle(b, j) + value_or_zero(layer.b_second, j);
    const A out = Cell::finish(in, sum, h(b, j), kept);
    h(b, j) = out;
    to.y(t, b, j) = T(out);
    for (int q = Cell::kKept - Cell::kKeptLate; to.gates && q < Cell::kKept; ++q) {
      to.gates(t, b, q * units + j) = T(kept[q]);
    }
  });
}

template <class T>
void check_lengths(const Layer<T>& layer) {
  check_range("lengths", layer.lengths, 0, layer.steps(), "the steps of `x`");
}

}  // namespace recurrence

// y[t] = h of step s at t = time(s), h = Cell::forward(W_ih x[t] + b_ih, W_hh h + b_hh, h, c), or
// with a second product h = Cell::finish(W_second Cell::forward(..) + b_second)
template <class Cell, class T>
void recurrent_layer(Device& dev, const Layer<T>& layer, const States<T>& to) {
  using namespace recurrence;
  check_lengths(layer);
  const Work<Cell, T> work(dev, layer);
  begin(dev, layer, work);
  for (int64_t s = 0; s < layer.steps(); ++s) {
    advance(dev, layer, to, work, s);
    if constexpr (Cell::kSecond) advance_second(dev, layer, to, work, s);
  }
  const auto h = work.h, c = work.c;
  for_each(dev, to.h_n, [=] KERNEL(int64_t b, int64_t j) { to.h_n(b, j) = T(h(b, j)); });
  for_each(dev, to.c_n, [=] KERNEL(int64_t b, int64_t j) { to.c_n(b, j) = T(c(b, j)); });
}

}  // namespace nativeops
