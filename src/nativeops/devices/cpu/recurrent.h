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
#include "nativeops/devices/cpu/dots.h"
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
  if (row.stride(N - 1) == 0) return simd::broadcast(Accum<T>(*from));  // the gradient of a sum
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

// Runs phases of work on all threads, or on this one alone if `steps`, the vector operations in
// all, are few.
template <class F>
void run_phases(Device& dev, int64_t phases, int64_t items, int64_t steps, F&& body) {
  const int64_t wanted = steps > kWorthWaking ? dev.num_threads() : 1;
  const int threads = static_cast<int>(std::max<int64_t>(1, std::min(wanted, items)));
  Phases all(phases, items, threads);
  dev.parallel(threads, [&](int64_t home) {
    all.work(static_cast<int>(home), [&](int64_t phase, int64_t item) { body(home, phase, item); });
  });
  all.rethrow();
}

// The products of one kind of rows with the weights of a cell, a panel of whole hidden units at a
// time: sums[row][unit][gate][lane]. The weights are packed so, or read as they lie.
template <class Cell, class T, class Of = Numbers>
class GateProducts {
  using A = Accum<T>;
  static constexpr int n = simd::kLanes<A>, kGates = Cell::kGates;
  static constexpr bool kPairs = !std::is_same_v<Of, Numbers>;

 public:
  static constexpr int kUnits = kWidest / kGates;  // vectors of units in a panel

  // rows: how many will be multiplied in all, and in one step.
  GateProducts(Device& dev, const Split& split, In<T, 2> weight, In<T, 1> bias, int64_t rows,
               int64_t rows_at_once)
      : split_(split),
        weight_(weight),
        whole_(weight.stride(1) == 1 && weight.size(1) % (kPairs ? 2 : 1) == 0),
        direct_((std::is_same_v<A, T> || kPairs) && whole_ &&
                (rows <= kFewRows || rows_at_once <= 2)),
        depth_(kPairs ? ceil_div(weight.size(1), 2) : weight.size(1)),
        memory_(dev.workspace<A>(split.vectors * kGates * n * (direct_ ? 1 : depth_ + 1))) {
    const int64_t steps = direct_ ? 0 : split.vectors * kGates * depth_;
    parallel_if_large(dev, split.panels, steps, [&](int64_t p) {
      for (int u = 0; u < split.count(p); ++u) {
        for (int g = 0; g < kGates; ++g) prepare(p, u, g, bias);
      }
    });
  }

  int64_t width(int64_t p) const { return split_.count(p) * kGates * n; }

  // sums[r] = rows[r] · weights + bias
  void multiply(int64_t p, const A* const* rows, int64_t count, A* sums) const {
    if (!direct_) {
      return tuned::multiply<Of>(static_cast<int>(width(p) / n), rows, count, 0, depth_,
                                 bias(p) + width(p), bias(p), 0, sums, width(p));
    }
    for (int u = 0; u < split_.count(p); ++u) {
      for (int g = 0; g < kGates; ++g) multiply_as_it_lies(p, u, g, rows, count, sums);
    }
  }

 private:
  // Packing takes the time of about 60 rows' products (Zen4 EPYC, 2026-11).
  static constexpr int64_t kFewRows = 48;

  A* bias(int64_t p) const {
    return memory_.data() + split_.first(p) * kGates * n * (direct_ ? 1 : depth_ + 1);
  }
  int64_t units() const { return weight_.size(0) / kGates; }
  int64_t row(int64_t p, int u, int g) const { return g * units() + (split_.first(p) + u) * n; }
  int64_t count(int64_t p, int u) const {
    return std::min<int64_t>(n, units() - (split_.first(p) + u) * n);
  }

  void prepare(int64_t p, int u, int g, In<T, 1> bias_in) {
    const int64_t first = row(p, u, g), inside = count(p, u), column = (u * kGates + g) * n;
    for (int64_t i = 0; i < n; ++i) {
      bias(p)[column + i] = i < inside && bias_in ? A(bias_in(first + i)) : A(0);
    }
    A* to = bias(p) + width(p) + column;
    if (direct_ || depth_ == 0) return;
    if constexpr (kPairs) {
      if (!whole_ || weight_.stride(0) % 2 != 0) return pack_pairs(first, inside, to, width(p));
      const auto* words = reinterpret_cast<const A*>(&weight_(first, 0));
      pack(View<const A, 2>{words, {depth_, inside}, {1, weight_.stride(0) / 2}}, to, width(p));
    } else {
      const View<const T, 2> part{
          &weight_(first, 0), {depth_, inside}, {weight_.stride(1), weight_.stride(0)}};
      pack(part, to, width(p));
    }
  }
  void pack_pairs(int64_t first, int64_t inside, A* to, int64_t width) {
    for (int64_t k = 0; k < depth_; ++k) {
      for (int64_t i = 0; i < n; ++i) {
        T word[2] = {T(0.0f), T(0.0f)};
        for (int64_t half = 0; half < 2 && i < inside; ++half) {
          if (2 * k + half < weight_.size(1)) word[half] = weight_(first + i, 2 * k + half);
        }
        memcpy(to + k * width + i, word, sizeof word);
      }
    }
  }

  void multiply_as_it_lies(int64_t p, int u, int g, const A* const* rows, int64_t height,
                           A* sums) const {
    const int64_t column = (u * kGates + g) * n;
    if constexpr (std::is_same_v<A, T> || kPairs) {
      dots<Of>(rows, height, &weight_(row(p, u, g), 0), weight_.stride(0), count(p, u), depth_,
               sums + column, width(p));
    }
    for (int64_t r = 0; r < height; ++r) {
      A* sum = sums + r * width(p) + column;
      const int64_t inside = count(p, u);
      simd::store(sum, simd::load(sum, inside) + simd::load(bias(p) + column));
    }
  }

  const Split& split_;
  const In<T, 2> weight_;
  const bool whole_;  // rows of whole words without gaps
  const bool direct_;
  const int64_t depth_;
  Workspace<A> memory_;
};

// Of: what rows and weights are multiplied as. As pairs of bf16, the state is kept in float too.
template <class Cell, class T, class Of = Numbers>
class Forward {
  using A = Accum<T>;
  using V = simd::Vec<A>;
  using Products = GateProducts<Cell, T, Of>;
  static constexpr int n = simd::kLanes<A>, kGates = Cell::kGates, kUnits = Products::kUnits;
  static constexpr bool kPairs = !std::is_same_v<Of, Numbers>;

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
        converts_((!std::is_same_v<A, T> && !kPairs) || layer.x.stride(2) != 1 ||
                  (kPairs && layer.inputs() % 2 != 0)),
        row_(kPairs ? ceil_div(layer.inputs(), 2) : layer.inputs()),
        converted_(dev.workspace<A>(converts_ ? chunk_ * seq_.batch * row_ : 0)),
        pairs_(dev.workspace<A>(kPairs ? seq_.batch * stride_ : 0)) {}

  void run() {
    start();
    const int64_t per_chunk = chunk_ + converts_,
                  chunks = ceil_div(seq_.steps, std::max<int64_t>(chunk_, 1));
    const int64_t steps =
        seq_.frames() * split_.vectors * kGates * (layer_.inputs() + layer_.units());
    run_phases(dev_, chunks * per_chunk, split_.panels, steps,
               [&](int64_t, int64_t phase, int64_t panel) {
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
  // The state as the weights are multiplied with it: half as long where two bf16 make a word.
  A* row(int64_t step, int64_t r) {
    if (!kPairs) return hidden(step, r);
    return pairs_.data() + (step % 2 * seq_.batch + r) * (stride_ / 2);
  }
  void set_row(int64_t step, int64_t r, int64_t unit, V state) {
    if constexpr (kPairs) {
      alignas(64) A lane[n];
      simd::store(lane, state);
      T* to = reinterpret_cast<T*>(row(step, r)) + unit;
      for (int i = 0; i < n; ++i) to[i] = T(lane[i]);
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
      using Number = std::conditional_t<kPairs, T, A>;
      auto* to = reinterpret_cast<Number*>(converted_.data() + (row - 1) * row_);
      for (int64_t i = 0; i < layer_.inputs(); ++i) to[i] = Number(layer_.x(t, b, i));
      if (kPairs && layer_.inputs() % 2 != 0) to[layer_.inputs()] = Number(A(0));
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
    alignas(64) A sums[kBlockRows<kVectors> * kVectors * n];
    const int64_t chunk_start = step / chunk_ * chunk_;
    const A* input =
        products(panel) + (seq_.frame(step, 0) - seq_.frame(chunk_start, 0)) * kVectors * n;
    for_blocks<kVectors>(seq_.active(step), [&](int64_t first, int64_t height) {
      const A* rows[kBlockRows<kVectors>];
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
  const int64_t row_;  // of converted inputs, in numbers or words
  const Workspace<A> converted_, pairs_;
};

template <class Cell, class T>
void recurrent_layer(Device& dev, const Layer<T>& layer, const States<T>& to) {
  recurrence::check_lengths(layer);
#if NATIVEOPS_LEVEL >= 2
  if constexpr (std::is_same_v<T, bf16>) {
    if (simd::has_pairs()) return Forward<Cell, T, Pairs>(dev, layer, to).run();
  }
#endif
  Forward<Cell, T>(dev, layer, to).run();
}

}  // namespace nativeops::tuned
