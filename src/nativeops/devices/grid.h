// SPDX-License-Identifier: Apache-2.0
// A recurrent layer over a grid, and its gradient, on every device: the definition.
//
// All cells of an anti-diagonal t + s depend on those of the one before alone. So each is one
// product: the rows [x, h above, h to the left, 1] of its cells, of the whole batch, with all
// weights and the biases below each other.
#pragma once
#include "nativeops/devices/checks.h"
#include "nativeops/devices/gemm.h"
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/matrix.h"

namespace nativeops {

namespace grid {

// What both directions are given. Optional inputs have no memory.
template <class T>
struct Layer {
  In<T, 4> x;            // t s b i
  In<T, 2> w, v_v, v_h;  // i 5·h, h 5·h
  In<T, 1> bias;         // 5·h
  In<int32_t, 1> heights, widths;
  In<T, 3> h_0, c_0;  // s b h: above the first row

  HOST_DEVICE int64_t height() const { return x.size(0); }
  HOST_DEVICE int64_t width() const { return x.size(1); }
  HOST_DEVICE int64_t batch() const { return x.size(2); }
  HOST_DEVICE int64_t inputs() const { return x.size(3); }
  HOST_DEVICE int64_t units() const { return v_h.size(0); }
  // Of a sequence; beyond the grid only on CUDA, where nobody has looked.
  HOST_DEVICE int64_t height(int64_t b) const { return length_of(heights, b, height()); }
  HOST_DEVICE int64_t width(int64_t b) const { return length_of(widths, b, width()); }

  // A row of what is multiplied with the weights: x, h above, h to the left, 1.
  HOST_DEVICE int64_t above() const { return inputs(); }
  HOST_DEVICE int64_t left() const { return inputs() + units(); }
  HOST_DEVICE int64_t one() const { return inputs() + 2 * units(); }
  HOST_DEVICE int64_t depth() const { return one() + 1; }
};

// A cell of the grid, of one sequence.
struct Cell {
  int64_t t, s, b;
  bool inside;  // of its sequence
};

// The cells t + s = d, from `first` to `end` along t, and a row for each and each sequence.
template <class T>
struct Diagonal {
  Layer<T> layer;
  int64_t d, first, end;

  HOST_DEVICE Diagonal(const Layer<T>& layer, int64_t d)
      : layer(layer),
        d(d),
        first(max2<int64_t>(0, d - layer.width() + 1)),
        end(min2(d + 1, layer.height())) {}
  static int64_t count(const Layer<T>& layer) {
    const bool empty = layer.height() == 0 || layer.width() == 0 || layer.batch() == 0;
    return empty ? 0 : layer.height() + layer.width() - 1;
  }
  static int64_t most_rows(const Layer<T>& layer) {
    return min2(layer.height(), layer.width()) * layer.batch();
  }

  HOST_DEVICE int64_t rows() const { return (end - first) * layer.batch(); }
  HOST_DEVICE int64_t row(int64_t t, int64_t b) const { return (t - first) * layer.batch() + b; }
  HOST_DEVICE Cell cell(int64_t row) const {
    const int64_t t = first + row / layer.batch(), b = row % layer.batch(), s = d - t;
    return {t, s, b, t < layer.height(b) && s < layer.width(b)};
  }
};

template <class From, class To>
void convert(Device& dev, In<From, 2> from, Out<To, 2> to) {
  for_each(dev, to, [=] KERNEL(int64_t i, int64_t j) { to(i, j) = To(Accum<From>(from(i, j))); });
}

// All weights below each other, in the order of a row.
template <class T>
void stack_weights(Device& dev, const Layer<T>& layer, Out<Accum<T>, 2> all) {
  const int64_t units = layer.units();
  convert<T, Accum<T>>(dev, layer.w, nativeops::rows(all, 0, layer.inputs()));
  convert<T, Accum<T>>(dev, layer.v_v, nativeops::rows(all, layer.above(), units));
  convert<T, Accum<T>>(dev, layer.v_h, nativeops::rows(all, layer.left(), units));
  convert<T, Accum<T>>(dev, In<T, 2>{layer.bias.data, {1, 5 * units}, {0, layer.bias.stride(0)}},
                       nativeops::rows(all, layer.one(), 1));
}

template <class T>
struct Results {
  Out<T, 4> output;        // t s b h
  Out<T, 3> h_n, c_n;      // s b h
  Out<T, 4> gates, cells;  // t s b 5·h, t s b h
};

// What arrives at the results, and what the forward pass left.
template <class T>
struct Arrived {
  In<T, 4> output, gates, cells, d_output;
  In<T, 3> d_h_n, d_c_n;
};

// The gradients. Those without memory are not wanted.
template <class T>
struct Grads {
  Out<T, 4> x;
  Out<T, 2> w, v_v, v_h;
  Out<T, 1> bias;
  Out<T, 3> h_0, c_0;
};

// What is computed of each row of a diagonal, with the formulas of a unit as ops/two_d_lstm.h has
// them.
template <class Unit, class T>
struct Formulas {
  using A = Accum<T>;

  // The rows of a diagonal; of zeros outside of the sequences, where x may be anything.
  static void gather(Device& dev, const Diagonal<T>& diagonal, In<T, 4> output, Out<A, 2> rows) {
    for_each_item(dev, diagonal.rows(), [=] KERNEL(Team team, int64_t row) {
      const Layer<T>& layer = diagonal.layer;
      const Cell at = diagonal.cell(row);
      const int64_t t = at.t, s = at.s, b = at.b, above = layer.above(), left = layer.left();
      if (!at.inside) return team.each(0, layer.depth(), [=](int64_t k) { rows(row, k) = A(0); });
      const bool has_above = t > 0 || layer.h_0;
      team.each(0, layer.inputs(), [=](int64_t i) { rows(row, i) = A(layer.x(t, s, b, i)); });
      team.each(0, layer.units(), [=](int64_t j) {
        rows(row, above + j) = !has_above ? A(0)
                               : t > 0    ? A(output(t - 1, s, b, j))
                                          : A(layer.h_0(s, b, j));
      });
      team.each(0, layer.units(),
                [=](int64_t j) { rows(row, left + j) = s > 0 ? A(output(t, s - 1, b, j)) : A(0); });
      team.each(layer.one(), layer.depth(), [=](int64_t k) { rows(row, k) = A(1); });
    });
  }

  // The formulas of a diagonal's cells, from the sums of their gates. c: the cells of two
  // diagonals, by t, in the dtype of sums.
  static void advance(Device& dev, const Diagonal<T>& diagonal, In<A, 2> sums, Out<A, 4> c,
                      const Results<T>& to) {
    for_each_item(dev, diagonal.rows(), [=] KERNEL(Team team, int64_t row) {
      const Layer<T>& layer = diagonal.layer;
      const Cell at = diagonal.cell(row);
      const int64_t t = at.t, s = at.s, b = at.b, h = layer.units(), now = diagonal.d % 2;
      const bool is_last = t + 1 == layer.height(b);
      if (!at.inside) {
        team.each(0, h, [=](int64_t j) {
          to.output(t, s, b, j) = T(A(0));
          if (to.cells) to.cells(t, s, b, j) = T(A(0));
        });
        if (to.gates) team.each(0, 5 * h, [=](int64_t k) { to.gates(t, s, b, k) = T(A(0)); });
        return;
      }
      const bool has_above = t > 0 || layer.c_0;
      team.each(0, h, [=](int64_t j) {
        const A above = !has_above ? A(0) : t > 0 ? c(1 - now, t - 1, b, j) : A(layer.c_0(s, b, j));
        const A left = s > 0 ? c(1 - now, t, b, j) : A(0);
        A z[5], gates[5], cell;
        for (int q = 0; q < 5; ++q) z[q] = sums(row, q * h + j);
        to.output(t, s, b, j) = T(Unit::forward(z, above, left, cell, gates));
        c(now, t, b, j) = cell;
        if (to.cells) to.cells(t, s, b, j) = T(cell);
        for (int q = 0; to.gates && q < 5; ++q) to.gates(t, s, b, q * h + j) = T(gates[q]);
        if (is_last) to.h_n(s, b, j) = to.output(t, s, b, j), to.c_n(s, b, j) = T(cell);
      });
    });
  }

  // The chain rule of `advance`: the gradients of a diagonal's sums. d_rows: those of the rows of
  // the diagonal after it. d_c: what goes on to the cells above and to the left, of two diagonals,
  // by t.
  static void retreat(Device& dev, const Diagonal<T>& diagonal, const Arrived<T>& from,
                      In<A, 2> d_rows, Out<A, 5> d_c, Out<A, 2> d_sums) {
    const Diagonal<T> after(diagonal.layer, diagonal.d + 1);
    for_each_item(dev, diagonal.rows(), [=] KERNEL(Team team, int64_t row) {
      const Layer<T>& layer = diagonal.layer;
      const Cell at = diagonal.cell(row);
      const int64_t t = at.t, s = at.s, b = at.b, h = layer.units(), now = diagonal.d % 2;
      if (!at.inside) return team.each(0, 5 * h, [=](int64_t k) { d_sums(row, k) = A(0); });
      const bool is_last = t + 1 == layer.height(b), has_below = !is_last;
      const bool has_right = s + 1 < layer.width(b), has_above = t > 0 || layer.c_0;
      const int64_t below = has_below ? after.row(t + 1, b) : 0;
      const int64_t right = has_right ? after.row(t, b) : 0;
      team.each(0, h, [=](int64_t j) {
        A d_h = A(from.d_output(t, s, b, j)), d_cell = A(0);
        if (is_last) d_h += A(from.d_h_n(s, b, j)), d_cell += A(from.d_c_n(s, b, j));
        if (has_below) {
          d_h += d_rows(below, layer.above() + j);
          d_cell += d_c(1 - now, 0, t + 1, b, j);
        }
        if (has_right) {
          d_h += d_rows(right, layer.left() + j);
          d_cell += d_c(1 - now, 1, t, b, j);
        }
        const A c_above = !has_above ? A(0)
                          : t > 0    ? A(from.cells(t - 1, s, b, j))
                                     : A(layer.c_0(s, b, j));
        const A c_left = s > 0 ? A(from.cells(t, s - 1, b, j)) : A(0);
        A gates[5], d_z[5];
        for (int q = 0; q < 5; ++q) gates[q] = A(from.gates(t, s, b, q * h + j));
        Unit::backward(gates, c_above, c_left, A(from.cells(t, s, b, j)), d_h, d_cell, d_z,
                       d_c(now, 0, t, b, j), d_c(now, 1, t, b, j));
        for (int q = 0; q < 5; ++q) d_sums(row, q * h + j) = d_z[q];
      });
    });
  }
};

// For columns without a last row: `from` where the sequence has no row at all, 0 beyond its width.
template <class T>
void begin_last_row(Device& dev, const Layer<T>& layer, In<T, 3> from, Out<T, 3> to) {
  for_each(dev, to, [=] KERNEL(int64_t s, int64_t b, int64_t j) {
    const bool passes = s < layer.width(b) && layer.height(b) == 0 && from;
    to(s, b, j) = passes ? from(s, b, j) : T(Accum<T>(0));
  });
}

template <class T>
void check_sizes(const Layer<T>& layer) {
  check_range("heights", layer.heights, 0, layer.height(), "the rows of `x`");
  check_range("widths", layer.widths, 0, layer.width(), "the columns of `x`");
}

template <class Formulas, class T>
void run(Device& dev, const Layer<T>& layer, const Results<T>& to) {
  using A = Accum<T>;
  check_sizes(layer);
  const int64_t units = layer.units(), depth = layer.depth(), most = Diagonal<T>::most_rows(layer);
  const int64_t cells = layer.height() * layer.batch() * units;
  auto memory =
      dev.template workspace<A>(depth * 5 * units + most * (depth + 5 * units) + 2 * cells);
  const Out<A, 2> weights = dense(memory.data(), depth, 5 * units);
  const Out<A, 2> rows = dense(weights.data + weights.count(), most, depth);
  const Out<A, 2> sums = dense(rows.data + rows.count(), most, 5 * units);
  const Out<A, 4> c = dense(sums.data + sums.count(), 2, layer.height(), layer.batch(), units);
  begin_last_row(dev, layer, layer.h_0, to.h_n);
  begin_last_row(dev, layer, layer.c_0, to.c_n);
  stack_weights(dev, layer, weights);
  for (int64_t d = 0; d < Diagonal<T>::count(layer); ++d) {
    const Diagonal<T> diagonal(layer, d);
    const auto some_rows = nativeops::rows(rows, 0, diagonal.rows());
    const auto some_sums = nativeops::rows(sums, 0, diagonal.rows());
    Formulas::gather(dev, diagonal, to.output, some_rows);
    gemm(dev, some_rows, weights, some_sums);
    Formulas::advance(dev, diagonal, some_sums, c, to);
  }
}

// The gradients that a diagonal's rows give to the inputs, and above the first row.
template <class T>
void give_inputs(Device& dev, const Diagonal<T>& diagonal, In<Accum<T>, 2> d_rows,
                 In<Accum<T>, 5> d_c, const Grads<T>& to) {
  using A = Accum<T>;
  for_each_item(dev, diagonal.rows(), [=] KERNEL(Team team, int64_t row) {
    const Layer<T>& layer = diagonal.layer;
    const Cell at = diagonal.cell(row);
    const int64_t t = at.t, s = at.s, b = at.b, now = diagonal.d % 2;
    if (to.x) {
      team.each(0, layer.inputs(),
                [=](int64_t i) { to.x(t, s, b, i) = T(at.inside ? d_rows(row, i) : A(0)); });
    }
    if (t > 0 || !at.inside) return;
    team.each(0, layer.units(), [=](int64_t j) {
      if (to.h_0) to.h_0(s, b, j) = T(d_rows(row, layer.above() + j));
      if (to.c_0) to.c_0(s, b, j) = T(d_c(now, 0, t, b, j));
    });
  });
}

template <class T>
void give(Device& dev, In<Accum<T>, 2> from, Out<T, 2> to) {
  if (to) convert<Accum<T>, T>(dev, from, to);
}

template <class Formulas, class T>
void run_back(Device& dev, const Layer<T>& layer, const Arrived<T>& from, const Grads<T>& to) {
  using A = Accum<T>;
  check_sizes(layer);
  const int64_t units = layer.units(), depth = layer.depth(), most = Diagonal<T>::most_rows(layer);
  const bool wants_weights = to.w || to.v_v || to.v_h || to.bias;
  const int64_t all = depth * 5 * units, cells = layer.height() * layer.batch() * units;
  auto memory = dev.template workspace<A>((1 + wants_weights) * all +
                                          most * (2 * depth + 5 * units) + 4 * cells);
  const Out<A, 2> weights = dense(memory.data(), depth, 5 * units);
  const Out<A, 2> d_weights = dense(weights.data + all, wants_weights ? depth : 0, 5 * units);
  const Out<A, 2> rows = dense(d_weights.data + d_weights.count(), most, depth);
  const Out<A, 2> d_rows = dense(rows.data + rows.count(), most, depth);
  const Out<A, 2> d_sums = dense(d_rows.data + d_rows.count(), most, 5 * units);
  const Out<A, 5> d_c =
      dense(d_sums.data + d_sums.count(), 2, 2, layer.height(), layer.batch(), units);
  if (to.h_0) begin_last_row(dev, layer, from.d_h_n, to.h_0);
  if (to.c_0) begin_last_row(dev, layer, from.d_c_n, to.c_0);
  for_each(dev, d_weights, [=] KERNEL(int64_t i, int64_t k) { d_weights(i, k) = A(0); });
  stack_weights(dev, layer, weights);
  for (int64_t d = Diagonal<T>::count(layer) - 1; d >= 0; --d) {
    const Diagonal<T> diagonal(layer, d);
    const auto some_rows = nativeops::rows(rows, 0, diagonal.rows());
    const auto some_d_rows = nativeops::rows(d_rows, 0, diagonal.rows());
    const auto some_d_sums = nativeops::rows(d_sums, 0, diagonal.rows());
    Formulas::retreat(dev, diagonal, from, d_rows, d_c, some_d_sums);
    gemm(dev, some_d_sums, transpose(weights), some_d_rows);
    give_inputs<T>(dev, diagonal, some_d_rows, d_c, to);
    if (!wants_weights) continue;
    Formulas::gather(dev, diagonal, from.output, some_rows);
    gemm(dev, transpose(some_rows), some_d_sums, d_weights, 1, 1);
  }
  if (!wants_weights) return;
  give<T>(dev, nativeops::rows(d_weights, 0, layer.inputs()), to.w);
  give<T>(dev, nativeops::rows(d_weights, layer.above(), units), to.v_v);
  give<T>(dev, nativeops::rows(d_weights, layer.left(), units), to.v_h);
  give<T>(dev, nativeops::rows(d_weights, layer.one(), 1),
          {to.bias.data, {1, 5 * units}, {0, to.bias.stride(0)}});
}

}  // namespace grid

}  // namespace nativeops
