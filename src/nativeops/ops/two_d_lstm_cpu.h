// SPDX-License-Identifier: Apache-2.0
// LSTM over a grid on the CPU: the formulas of two_d_lstm.h, a vector of units at a time.
#pragma once
#include <algorithm>

#include "nativeops/devices/cpu/activations.h"
#include "nativeops/devices/cpu/pack.h"
#include "nativeops/ops/two_d_lstm.h"

namespace nativeops::tuned {

template <class T>
struct GridFormulas {
  using A = Accum<T>;
  using V = simd::Vec<A>;
  using Diagonal = grid::Diagonal<T>;
  static constexpr int n = simd::kLanes<A>;

  static void gather(Device& dev, const Diagonal& diagonal, In<T, 4> output, Out<A, 2> rows) {
    const grid::Layer<T>& layer = diagonal.layer;
    for_rows(dev, diagonal, layer.depth(), [&](int64_t row, const grid::Cell& at) {
      A* to = &rows(row, 0);
      if (!at.inside) return void(std::fill_n(to, layer.depth(), A(0)));
      copy(line(layer.x, at.t, at.s, at.b), layer.inputs(), to);
      const bool first = at.t == 0;
      copy(first ? line(layer.h_0, at.s, at.b) : line(output, at.t - 1, at.s, at.b), layer.units(),
           to + layer.above());
      copy(at.s > 0 ? line(output, at.t, at.s - 1, at.b) : Line<T>{}, layer.units(),
           to + layer.left());
      to[layer.one()] = A(1);
    });
  }

  static void advance(Device& dev, const Diagonal& diagonal, In<A, 2> sums, Out<A, 4> c,
                      const grid::Results<T>& to) {
    const grid::Layer<T>& layer = diagonal.layer;
    const int64_t h = layer.units(), now = diagonal.d % 2;
    for_rows(dev, diagonal, kFormula * h, [&](int64_t row, const grid::Cell& at) {
      const int64_t t = at.t, s = at.s, b = at.b;
      if (!at.inside) {
        clear(to.output, t, s, b);
        clear(to.cells, t, s, b);
        return clear(to.gates, t, s, b);
      }
      const bool is_last = t + 1 == layer.height(b);
      const Line<T> first = line(layer.c_0, s, b);
      const A *above = t > 0 ? &c(1 - now, t - 1, b, 0) : nullptr,
              *left = s > 0 ? &c(1 - now, t, b, 0) : nullptr;
      for (int64_t j = 0; j < h; j += n) {
        const int64_t count = h - j;
        V z[5], gates[5], cell;
        for (int q = 0; q < 5; ++q) z[q] = simd::load(&sums(row, q * h + j), count);
        const V c_above = t > 0 ? simd::load(above + j, count) : first.load(j, count);
        const V c_left = s > 0 ? simd::load(left + j, count) : simd::zero<A>();
        const V out = GridUnit::forward(z, c_above, c_left, cell, gates);
        simd::store(&c(now, t, b, j), cell, count);
        store_along(to.output, &to.output(t, s, b, j), out, count);
        if (to.cells) store_along(to.cells, &to.cells(t, s, b, j), cell, count);
        for (int q = 0; to.gates && q < 5; ++q) {
          store_along(to.gates, &to.gates(t, s, b, q * h + j), gates[q], count);
        }
        if (!is_last) continue;
        store_along(to.h_n, &to.h_n(s, b, j), out, count);
        store_along(to.c_n, &to.c_n(s, b, j), cell, count);
      }
    });
  }

  static void retreat(Device& dev, const Diagonal& diagonal, const grid::Arrived<T>& from,
                      In<A, 2> d_rows, Out<A, 5> d_c, Out<A, 2> d_sums) {
    const grid::Layer<T>& layer = diagonal.layer;
    const Diagonal after(layer, diagonal.d + 1);
    const int64_t h = layer.units(), now = diagonal.d % 2;
    for_rows(dev, diagonal, kFormula * h, [&](int64_t row, const grid::Cell& at) {
      const int64_t t = at.t, s = at.s, b = at.b;
      if (!at.inside) return void(std::fill_n(&d_sums(row, 0), 5 * h, A(0)));
      const bool is_last = t + 1 == layer.height(b), has_right = s + 1 < layer.width(b);
      const Line<T> d_h_n = is_last ? line(from.d_h_n, s, b) : Line<T>{},
                    d_c_n = is_last ? line(from.d_c_n, s, b) : Line<T>{},
                    d_output = line(from.d_output, t, s, b), gate = line(from.gates, t, s, b),
                    cell = line(from.cells, t, s, b),
                    above = t > 0 ? line(from.cells, t - 1, s, b) : line(layer.c_0, s, b),
                    left = s > 0 ? line(from.cells, t, s - 1, b) : Line<T>{};
      const A* below_h = is_last ? nullptr : &d_rows(after.row(t + 1, b), layer.above());
      const A* right_h = has_right ? &d_rows(after.row(t, b), layer.left()) : nullptr;
      const A* below_c = is_last ? nullptr : &d_c(1 - now, 0, t + 1, b, 0);
      const A* right_c = has_right ? &d_c(1 - now, 1, t, b, 0) : nullptr;
      for (int64_t j = 0; j < h; j += n) {
        const int64_t count = h - j;
        V gates[5], d_z[5], d_above, d_left;
        V d_h = d_output.load(j, count) + d_h_n.load(j, count), d_cell = d_c_n.load(j, count);
        if (!is_last) {
          d_h = d_h + simd::load(below_h + j, count);
          d_cell = d_cell + simd::load(below_c + j, count);
        }
        if (has_right) {
          d_h = d_h + simd::load(right_h + j, count);
          d_cell = d_cell + simd::load(right_c + j, count);
        }
        for (int q = 0; q < 5; ++q) gates[q] = gate.load(q * h + j, count);
        GridUnit::backward(gates, above.load(j, count), left.load(j, count), cell.load(j, count),
                           d_h, d_cell, d_z, d_above, d_left);
        for (int q = 0; q < 5; ++q) simd::store(&d_sums(row, q * h + j), d_z[q], count);
        simd::store(&d_c(now, 0, t, b, j), d_above, count);
        simd::store(&d_c(now, 1, t, b, j), d_left, count);
      }
    });
  }

 private:
  static constexpr int64_t kFormula = 50;  // vector operations, of which one copies

  // body(row, cell) for the rows of a diagonal, each of so many operations on single numbers.
  template <class F>
  static void for_rows(Device& dev, const Diagonal& diagonal, int64_t operations, F&& body) {
    const int64_t rows = diagonal.rows();
    parallel_if_large(dev, rows, rows * operations / n,
                      [&](int64_t row) { body(row, diagonal.cell(row)); });
  }
  template <class View, class... Place>
  static Line<T> line(const View& all, Place... place) {
    return {all ? &all(place..., 0) : nullptr, all.stride(sizeof...(Place))};
  }
  static void copy(const Line<T>& from, int64_t count, A* to) {
    for (int64_t k = 0; k < count; k += n) simd::store(to + k, from.load(k, count - k), count - k);
  }
  static void clear(const Out<T, 4>& all, int64_t t, int64_t s, int64_t b) {
    for (int64_t k = 0; all && k < all.size(3); ++k) all(t, s, b, k) = T(A(0));
  }
};

template <class T>
constexpr auto two_d_lstm = nativeops::two_d_lstm<T, GridFormulas<T>>;
template <class T>
constexpr auto two_d_lstm_grad = nativeops::two_d_lstm_grad<T, GridFormulas<T>>;

}  // namespace nativeops::tuned
