// SPDX-License-Identifier: Apache-2.0
// The recurrent layer on the CPU, generic over its cell (ops/*_cpu.h). Weights are packed once per
// call. In each step every thread multiplies the state with the panels of its own hidden units and
// applies the cell's formula to the sums while they are in the first cache; one barrier ends it.
// The input product of a few steps is taken together, so that a panel is read for many rows at once
// but no array grows with the number of steps.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "nativeops/devices/cpu/activations.h"
#include "nativeops/devices/cpu/panels.h"
#include "nativeops/devices/cpu/phases.h"
#include "nativeops/devices/cpu/sequences.h"
#include "nativeops/devices/recurrent.h"

namespace nativeops::tuned {

// A vector of numbers along the last axis, at most `count`; what is not loaded is 0.
template <class T, int N>
simd::Vec<Accum<T>> load_along(const View<const T, N>& row, const T* from, int64_t count) {
  constexpr int n = simd::kLanes<Accum<T>>;
  if (row.stride(N - 1) == 1) return simd::load(from, count);
  alignas(64) Accum<T> lane[n] = {};
  for (int64_t i = 0; i < std::min<int64_t>(count, n); ++i) {
    lane[i] = Accum<T>(from[i * row.stride(N - 1)]);
  }
  return simd::load(lane);
}
template <class T, int N>
void store_along(const View<T, N>& row, T* to, simd::Vec<Accum<T>> a, int64_t count) {
  constexpr int n = simd::kLanes<Accum<T>>;
  if constexpr (std::is_same_v<T, Accum<T>>) {
    if (row.stride(N - 1) == 1) return simd::store(to, a, count);
  }
  alignas(64) Accum<T> lane[n];
  simd::store(lane, a);
  for (int64_t i = 0; i < std::min<int64_t>(count, n); ++i) to[i * row.stride(N - 1)] = T(lane[i]);
}

// Runs phases of work on all threads.
template <class F>
void run_phases(Device& dev, int64_t phases, int64_t items, F&& body) {
  const int threads = static_cast<int>(std::min<int64_t>(dev.num_threads(), items));
  Phases all(phases, items, std::max(1, threads));
  dev.parallel(std::max(1, threads), [&](int64_t home) {
    all.work(static_cast<int>(home), [&](int64_t phase, int64_t item) { body(home, phase, item); });
  });
}

// The weights of a cell in panels of whole hidden units: panel[k][unit][gate][lane].
template <class Cell, class T>
class CellPanels {
  using A = Accum<T>;
  static constexpr int n = simd::kLanes<A>, kGates = Cell::kGates;

 public:
  static constexpr int kUnits = kWidest / kGates;  // vectors of units in a panel

  CellPanels(Device& dev, const Split& split, In<T, 2> weight, In<T, 1> bias)
      : depth_(weight.size(1)),
        memory_(dev.workspace<A>(split.vectors * kGates * n * (depth_ + 1))) {
    dev.parallel(split.panels, [&](int64_t p) {
      for (int u = 0; u < split.count(p); ++u) {
        for (int g = 0; g < kGates; ++g) pack_gate(split, p, u, g, weight, bias);
      }
    });
  }

  int64_t depth() const { return depth_; }
  const A* panel(const Split& split, int64_t p) const { return bias(split, p) + width(split, p); }
  A* bias(const Split& split, int64_t p) const {
    return memory_.data() + split.first(p) * kGates * n * (depth_ + 1);
  }
  static int64_t width(const Split& split, int64_t p) { return split.count(p) * kGates * n; }

 private:
  void pack_gate(const Split& split, int64_t p, int u, int g, In<T, 2> weight, In<T, 1> bias_in) {
    const int64_t all = weight.size(0) / kGates, unit = (split.first(p) + u) * n;
    const int64_t count = std::min<int64_t>(n, all - unit), row = g * all + unit;
    const int64_t column = (u * kGates + g) * n;
    A* bias_out = bias(split, p);
    const View<const T, 2> part{
        &weight(row, 0), {depth_, count}, {weight.stride(1), weight.stride(0)}};
    pack(part, bias_out + width(split, p) + column, width(split, p));
    for (int64_t i = 0; i < n; ++i) {
      bias_out[column + i] = i < count && bias_in ? A(bias_in(row + i)) : A(0);
    }
  }

  int64_t depth_;
  Workspace<A> memory_;
};

template <class Cell, class T>
class Forward {
  using A = Accum<T>;
  using V = simd::Vec<A>;
  static constexpr int n = simd::kLanes<A>, kGates = Cell::kGates,
                       kUnits = CellPanels<Cell, T>::kUnits;

 public:
  Forward(Device& dev, const Layer<T>& layer, const States<T>& to)
      : dev_(dev),
        layer_(layer),
        to_(to),
        seq_(layer.x.size(0), layer.x.size(1), layer.lengths, layer.reverse),
        split_(ceil_div(layer.units(), n), kUnits, dev.num_threads()),
        input_(dev, split_, layer.w_ih, layer.b_ih),
        recurrent_(dev, split_, layer.w_hh, layer.b_hh),
        chunk_(std::min(std::max<int64_t>(2, ceil_div(kChunkRows, seq_.batch)), seq_.steps)),
        stride_(split_.vectors * n + n),  // not a power of two, which would crowd the caches' sets
        products_(dev.workspace<A>(chunk_ * seq_.batch * split_.vectors * kGates * n)),
        state_(dev.workspace<A>(3 * seq_.batch * stride_)),
        converts_(!std::is_same_v<A, T> || layer.x.stride(2) != 1),
        converted_(dev.workspace<A>(converts_ ? chunk_ * seq_.batch * layer.inputs() : 0)) {}

  void run() {
    start();
    const int64_t per_chunk = chunk_ + converts_,
                  chunks = ceil_div(seq_.steps, std::max<int64_t>(chunk_, 1));
    run_phases(dev_, chunks * per_chunk, split_.panels, [&](int64_t, int64_t phase, int64_t panel) {
      const int64_t first = phase / per_chunk * chunk_,
                    step = first + phase % per_chunk - converts_;
      if (step < first) return convert(first, panel);
      if (step >= seq_.steps) return;
      if (step == first) multiply_input(first, panel);
      with_width(split_.count(panel),
                 [&](auto units) { this->template advance<units>(step, panel); });
      clear_rest(step, panel);
    });
  }

 private:
  static constexpr int64_t kChunkRows = 48;

  template <class F>
  static void with_width(int units, F&& f) {
    if constexpr (kUnits == 1) return f(std::integral_constant<int, 1>());
    if (units == 1) return f(std::integral_constant<int, 1>());
    if (units == 2) return f(std::integral_constant<int, 2>());
    if (units == 3) return f(std::integral_constant<int, 3>());
    f(std::integral_constant<int, 4>());
  }

  A* hidden(int64_t step, int64_t r) {
    return state_.data() + (step % 2 * seq_.batch + r) * stride_;
  }
  A* cell(int64_t r) { return state_.data() + (2 * seq_.batch + r) * stride_; }
  A* products(int64_t panel) {
    return products_.data() + chunk_ * seq_.batch * split_.first(panel) * kGates * n;
  }

  // The initial states; those of sequences without a step are the final ones.
  void start() {
    for (int64_t r = 0; r < seq_.batch; ++r) {
      const int64_t b = seq_.item(r);
      fill(hidden(0, r), layer_.h_0, b);
      if (Cell::kHasCell) fill(cell(r), layer_.c_0, b);
      if (seq_.length(r) > 0) continue;
      for (int64_t j = 0; j < layer_.units(); ++j) {
        to_.h_n(b, j) = T(hidden(0, r)[j]);
        if (Cell::kHasCell) to_.c_n(b, j) = T(cell(r)[j]);
      }
    }
  }
  void fill(A* row, In<T, 2> from, int64_t b) {
    for (int64_t j = 0; j < stride_; ++j) {
      row[j] = from && j < layer_.units() ? A(from(b, j)) : A(0);
    }
  }

  // The inputs of a chunk of steps in the type that is computed in; each panel does a part.
  void convert(int64_t first, int64_t panel) {
    int64_t row = 0;
    for_frames(first, [&](int64_t t, int64_t b) {
      if (row++ % split_.panels != panel) return;
      A* to = converted_.data() + (row - 1) * layer_.inputs();
      for (int64_t i = 0; i < layer_.inputs(); ++i) to[i] = A(layer_.x(t, b, i));
    });
  }
  template <class F>
  void for_frames(int64_t first, F&& f) {
    for (int64_t s = first; s < std::min(first + chunk_, seq_.steps); ++s) {
      for (int64_t r = 0; r < seq_.active(s); ++r) f(seq_.time(s, r), seq_.item(r));
    }
  }

  void multiply_input(int64_t first, int64_t panel) {
    std::vector<const A*> rows;
    rows.reserve(static_cast<size_t>(chunk_ * seq_.batch));
    for_frames(first, [&](int64_t t, int64_t b) {
      if constexpr (std::is_same_v<A, T>) {
        if (!converts_) return rows.push_back(&layer_.x(t, b, 0));
      }
      rows.push_back(converted_.data() + static_cast<int64_t>(rows.size()) * layer_.inputs());
    });
    const int64_t width = input_.width(split_, panel);
    multiply(static_cast<int>(width / n), rows.data(), static_cast<int64_t>(rows.size()), 0,
             layer_.inputs(), input_.panel(split_, panel), input_.bias(split_, panel), 0,
             products(panel), width);
  }

  // One step of all its sequences for the hidden units of a panel.
  template <int kPanelUnits>
  void advance(int64_t step, int64_t panel) {
    constexpr int kVectors = kPanelUnits * kGates;
    constexpr auto heights = std::make_integer_sequence<int, kBlockRows<kVectors>>();
    alignas(64) A sums[kBlockRows<kVectors> * kVectors * n];
    const int64_t chunk_start = step / chunk_ * chunk_;
    const A* input =
        products(panel) + (seq_.frame(step, 0) - seq_.frame(chunk_start, 0)) * kVectors * n;
    for_blocks<kVectors>(seq_.active(step), [&](int64_t first, int64_t height) {
      const A* rows[kBlockRows<kVectors>];
      for (int64_t r = 0; r < height; ++r) rows[r] = hidden(step, first + r);
      block_of<A, kVectors>(static_cast<int>(height), heights)(
          rows, 0, layer_.units(), recurrent_.panel(split_, panel), recurrent_.bias(split_, panel),
          0, sums, kVectors * n);
      for (int64_t r = 0; r < height; ++r) {
        for (int u = 0; u < kPanelUnits; ++u) {
          const int64_t column = r * kVectors * n + u * kGates * n;
          apply(step, first + r, (split_.first(panel) + u) * n,
                input + first * kVectors * n + column, sums + column);
        }
      }
    });
  }

  // The cell's formula for a vector of units of one sequence.
  void apply(int64_t step, int64_t r, int64_t unit, const A* from_input, const A* from_state) {
    V x[kGates], h[kGates], kept[Cell::kKept > 0 ? Cell::kKept : 1];
    for (int g = 0; g < kGates; ++g) {
      x[g] = simd::load(from_input + g * n);
      h[g] = simd::load(from_state + g * n);
    }
    V c = Cell::kHasCell ? simd::load(cell(r) + unit) : simd::zero<A>();
    const V out = Cell::forward(x, h, simd::load(hidden(step, r) + unit), c, kept);
    simd::store(hidden(step + 1, r) + unit, out);
    if (Cell::kHasCell) simd::store(cell(r) + unit, c);
    const int64_t t = seq_.time(step, r), b = seq_.item(r), count = layer_.units() - unit;
    store_along(to_.y, &to_.y(t, b, unit), out, count);
    if (Cell::kKept > 0 && to_.gates) {
      for (int q = 0; q < Cell::kKept; ++q) {
        store_along(to_.gates, &to_.gates(t, b, q * layer_.units() + unit), kept[q], count);
      }
    }
    if (Cell::kHasCell && to_.cells) store_along(to_.cells, &to_.cells(t, b, unit), c, count);
    if (step + 1 < seq_.length(r)) return;
    store_along(to_.h_n, &to_.h_n(b, unit), out, count);
    if (Cell::kHasCell) store_along(to_.c_n, &to_.c_n(b, unit), c, count);
  }

  // Beyond the end of a sequence all results are 0.
  void clear_rest(int64_t t, int64_t panel) {
    const int64_t unit = split_.first(panel) * n;
    const int64_t count =
        std::min(split_.count(panel) * n, static_cast<int>(layer_.units() - unit));
    for (int64_t r = seq_.active(t); r < seq_.batch; ++r) {
      const int64_t b = seq_.item(r);
      for (int64_t j = unit; j < unit + count; ++j) {
        to_.y(t, b, j) = T(0);
        if (Cell::kHasCell && to_.cells) to_.cells(t, b, j) = T(0);
        for (int q = 0; to_.gates && q < Cell::kKept; ++q) {
          to_.gates(t, b, q * layer_.units() + j) = T(0);
        }
      }
    }
  }

  Device& dev_;
  const Layer<T>& layer_;
  const States<T>& to_;
  const Sequences seq_;
  const Split split_;
  const CellPanels<Cell, T> input_, recurrent_;
  const int64_t chunk_, stride_;
  const Workspace<A> products_, state_;
  const bool converts_;
  const Workspace<A> converted_;
};

template <class Cell, class T>
void recurrent_layer(Device& dev, const Layer<T>& layer, const States<T>& to) {
  recurrence::check_lengths(layer);
  Forward<Cell, T>(dev, layer, to).run();
}

}  // namespace nativeops::tuned
