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
#include "nativeops/devices/cpu/gate_products.h"
#include "nativeops/devices/cpu/phases.h"
#include "nativeops/devices/cpu/sequences.h"
#if NATIVEOPS_LEVEL >= 3
#include "nativeops/devices/cpu/tile_products.h"
#endif
#include "nativeops/devices/recurrent.h"

namespace nativeops::tuned {

// Of: what rows and weights are multiplied as. As words of bf16, the state is kept in float too.
template <class Cell, class T, class Of = Numbers>
class Forward {
  using A = Accum<T>;
  using V = simd::Vec<A>;
  using Products = GateProducts<Cell, T, Of>;
  static constexpr int n = simd::kLanes<A>, kGates = Cell::kGates, kUnits = Products::kUnits;
  static constexpr bool kTiles = Of::kAreTiles, kWords = !std::is_same_v<Of, Numbers>;

 public:
  Forward(Device& dev, const Layer<T>& layer, const States<T>& to)
      : dev_(dev),
        layer_(layer),
        to_(to),
        seq_(layer.x.size(0), layer.x.size(1), layer.lengths, layer.reverse),
        split_(ceil_div(layer.units(), n), kUnits, dev.num_threads()),
        input_(dev, split_, layer.w_ih, layer.b_ih, seq_.frames(), seq_.frames()),
        recurrent_(dev, split_, layer.w_hh, layer.b_hh, seq_.frames(), seq_.batch),
        chunk_(std::min(std::max<int64_t>(2, ceil_div(kChunkRows, seq_.batch)), seq_.steps)),
        stride_(split_.vectors * n + n),  // not a power of two, which would crowd the caches' sets
        products_(dev.workspace<A>(chunk_ * seq_.batch * split_.vectors * kGates * n)),
        state_(dev.workspace<A>(3 * seq_.batch * stride_)),
        streams_(to.gates && to.gates.count() * static_cast<int64_t>(sizeof(T)) > kCaches),
        converts_(kTiles || (!std::is_same_v<A, T> && !kWords) || layer.x.stride(2) != 1 ||
                  layer.inputs() % (kWords ? 2 : 1) != 0),
        row_(Of::words(layer.inputs()) + (kTiles ? n : 0)),
        converted_(dev.workspace<A>(converts_ ? chunk_ * seq_.batch * row_ : 0)),
        state_row_(Of::words(split_.vectors * n) + n),
        words_(dev.workspace<A>(kWords ? 2 * seq_.batch * state_row_ : 0)) {}

  void run() {
    start();
    const int64_t per_chunk = chunk_ + converts_,
                  chunks = ceil_div(seq_.steps, std::max<int64_t>(chunk_, 1));
    const int64_t steps =
        seq_.frames() * split_.vectors * kGates * (layer_.inputs() + layer_.units());
    run_phases<typename Of::Thread>(
        dev_, chunks * per_chunk, split_.panels, steps, [&](int64_t, int64_t phase, int64_t panel) {
          const int64_t first = phase / per_chunk * chunk_,
                        step = first + phase % per_chunk - converts_;
          if (step < first) return convert(first, panel);
          if (step >= seq_.steps) return;
          if (step == first) multiply_input(first, panel);
          with_width(split_.count(panel),
                     [&](auto units) { this->template advance<units>(step, panel); });
          clear_rest(step, panel);
          if (streams_) simd::settle();
        });
  }

 private:
  static constexpr int64_t kChunkRows = 48;
  static constexpr int64_t kCaches = int64_t{16} << 20;  // bytes

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
  // The state as the weights are multiplied with it.
  A* row(int64_t step, int64_t r) {
    if (!kWords) return hidden(step, r);
    return words_.data() + (step % 2 * seq_.batch + r) * state_row_;
  }
  void set_row(int64_t step, int64_t r, int64_t unit, V state) {
    if constexpr (kTiles) {
      Of::write(row(step, r), state_row_ - n, unit, state, layer_.units() - unit);
    } else if constexpr (kWords) {
      simd::store_halves(reinterpret_cast<T*>(row(step, r)) + unit, simd::to_bf16(state));
    }
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
      for (int64_t j = 0; j < split_.vectors * n; j += n) {
        set_row(0, r, j, simd::load(hidden(0, r) + j));
      }
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
      using Number = std::conditional_t<kWords, T, A>;
      A* words = converted_.data() + (row - 1) * row_;
      if constexpr (kTiles) {
        for (int64_t i = 0; i < layer_.inputs(); i += n) {
          const int64_t count = layer_.inputs() - i;
          Of::write(words, row_ - n, i, load_along(layer_.x, &layer_.x(t, b, i), count), count);
        }
        return;
      }
      auto* to = reinterpret_cast<Number*>(words);
      for (int64_t i = 0; i < layer_.inputs(); ++i) to[i] = Number(layer_.x(t, b, i));
      if (kWords && layer_.inputs() % 2 != 0) to[layer_.inputs()] = Number(A(0));
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
      const auto* own = reinterpret_cast<const A*>(&layer_.x(t, b, 0));
      const auto next = static_cast<int64_t>(rows.size());
      rows.push_back(converts_ ? converted_.data() + next * row_ : own);
    });
    input_.multiply(panel, rows.data(), static_cast<int64_t>(rows.size()), products(panel));
  }

  // One step of all its sequences for the hidden units of a panel.
  template <int kPanelUnits>
  void advance(int64_t step, int64_t panel) {
    constexpr int kVectors = kPanelUnits * kGates;
    constexpr int kRows = Of::template kRows<kVectors>;
    alignas(64) A sums[kRows * kVectors * n];
    const int64_t chunk_start = step / chunk_ * chunk_;
    const A* input =
        products(panel) + (seq_.frame(step, 0) - seq_.frame(chunk_start, 0)) * kVectors * n;
    for_blocks(seq_.active(step), kRows, [&](int64_t first, int64_t height) {
      const A* rows[kRows];
      for (int64_t r = 0; r < height; ++r) rows[r] = row(step, first + r);
      recurrent_.multiply(panel, rows, height, sums);
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
    set_row(step + 1, r, unit, out);
    if (Cell::kHasCell) simd::store(cell(r) + unit, c);
    const int64_t t = seq_.time(step, r), b = seq_.item(r), count = layer_.units() - unit;
    write(to_.y, t, b, unit, out, count);
    if (Cell::kKept > 0 && to_.gates) {
      for (int q = 0; q < Cell::kKept; ++q) {
        write(to_.gates, t, b, q * layer_.units() + unit, kept[q], count);
      }
    }
    if (Cell::kHasCell && to_.cells) write(to_.cells, t, b, unit, c, count);
    if (step + 1 < seq_.length(r)) return;
    store_along(to_.h_n, &to_.h_n(b, unit), out, count);
    if (Cell::kHasCell) store_along(to_.c_n, &to_.c_n(b, unit), c, count);
  }

  // Results too large for the caches go past them, where whole lines are written.
  void write(const Out<T, 3>& to, int64_t t, int64_t b, int64_t first, V value, int64_t count) {
    T* address = &to(t, b, first);
    if constexpr (std::is_same_v<A, T>) {
      const bool aligned = reinterpret_cast<uintptr_t>(address) % sizeof(V) == 0;
      if (streams_ && aligned && count >= n && to.stride(2) == 1)
        return simd::stream(address, value);
    }
    store_along(to, address, value, count);
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
  const Products input_, recurrent_;
  const int64_t chunk_, stride_;
  const Workspace<A> products_, state_;
  const bool streams_, converts_;
  const int64_t row_;  // of converted inputs, in words; tiles in a row are no power of two apart
  const Workspace<A> converted_;
  const int64_t state_row_;
  const Workspace<A> words_;
};

template <class Cell, class T>
void recurrent_layer(Device& dev, const Layer<T>& layer, const States<T>& to) {
  recurrence::check_lengths(layer);
#if NATIVEOPS_LEVEL >= 3
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, float>) {
    using Of = Tiles<std::is_same_v<T, float> ? 2 : 1>;
    const bool few = are_few_rows(layer.steps() * layer.batch(), layer.batch());
    if (!few && (Of::kParts == 1 || layer.high)) return Forward<Cell, T, Of>(dev, layer, to).run();
  }
#endif
#if NATIVEOPS_LEVEL >= 2
  if constexpr (std::is_same_v<T, bf16>) {
    if (simd::has_pairs()) return Forward<Cell, T, Pairs>(dev, layer, to).run();
  }
#endif
  Forward<Cell, T>(dev, layer, to).run();
}

}  // namespace nativeops::tuned
