// SPDX-License-Identifier: Apache-2.0
// The gradient of the recurrent layer on the CPU, generic over its cell. Step by step from the last
// to the first, the gradients of all gates are computed into one array over all steps; from it the
// gradients of inputs and weights follow as large products over all steps together.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "nativeops/devices/cpu/recurrent.h"
#include "nativeops/devices/cpu/weight_grad.h"
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops::tuned {

// The columns of the weights of all gates in panels, gate below gate; as pairs, two rows make one
// of words.
template <class T, class Of>
class ColumnPanels {
  using A = Accum<T>;
  static constexpr int n = simd::kLanes<A>;

 public:
  ColumnPanels(Device& dev, const Split& split, In<T, 2> matrix, int gates)
      : split_(split),
        gate_(Of::words(matrix.size(0) / gates)),
        gates_(gates),
        memory_(dev.workspace<A>(split.vectors * n * gates * gate_)) {
    const int64_t units = matrix.size(0) / gates;
    dev.parallel(split.panels, [&](int64_t p) {
      for (int v = 0; v < split.count(p); ++v) {
        const int64_t column = (split.first(p) + v) * n;
        const int64_t inside = std::min<int64_t>(n, matrix.size(1) - column);
        for (int g = 0; units > 0 && g < gates; ++g) {
          prepare(
              {&matrix(g * units, column), {units, inside}, {matrix.stride(0), matrix.stride(1)}},
              panel(p, g), split.count(p), v);
        }
      }
    });
  }
  A* panel(int64_t p, int gate) const {
    return memory_.data() + (split_.first(p) * gates_ + gate * split_.count(p)) * gate_ * n;
  }

 private:
  void prepare(View<const T, 2> from, A* to, int vectors, int v) const {
    if constexpr (Of::kAreTiles) {
      Of::pack(from, to, vectors, v, gate_);
    } else if constexpr (Of::kPerWord == 2) {
      for (int64_t k = 0; k < gate_; ++k) {
        for (int64_t i = 0; i < n; ++i) {
          const auto at = [&](int64_t row) { return i < from.size(1) ? from(row, i) : T(0.0f); };
          to[(k * vectors + v) * n + i] = word_of(at(2 * k), at(2 * k + 1));
        }
      }
    } else {
      pack(from, to + v * n, vectors * n);
    }
  }

  const Split& split_;
  const int64_t gate_;  // in words
  const int gates_;
  const Workspace<A> memory_;
};

// Of: what the products are made of, and the gates' gradients kept as. As pairs, a gate must have
// whole words.
template <class Cell, class T, class Of = Numbers>
class Backward {
  using A = Accum<T>;
  using V = simd::Vec<A>;
  static constexpr int n = simd::kLanes<A>, kGates = Cell::kGates, kParts = Cell::kParts;

 public:
  Backward(Device& dev, const Layer<T>& layer, const Arrived<T>& from, const LayerGrads<T>& to)
      : dev_(dev),
        layer_(layer),
        from_(from),
        to_(to),
        units_(layer.units()),
        kept_gates_(Cell::kKept == 0 || from.gates),
        seq_(layer.x.size(0), layer.x.size(1), layer.lengths, layer.reverse),
        split_(ceil_div(units_, n), kWidest, dev.num_threads()),
        recurrent_(dev, split_, layer.w_hh, kGates),
        stride_(split_.vectors * n),
        gate_(Of::words(units_)),
        parts_(dev.workspace<A>(seq_.frames() * row_size())),
        carried_(dev.workspace<A>(2 * seq_.batch * stride_)),
        bias_(dev.workspace<A>(kParts * stride_)),
        sums_(dev.workspace<A>(dev.num_threads() * seq_.batch * kWidest * n)) {}

  void run() {
    start();
    if (!kept_gates_) recompute();
    const int64_t steps = seq_.frames() * split_.vectors * kGates * units_;
    run_phases<typename Of::Thread>(dev_, seq_.steps + 1, split_.panels, steps,
                                    [&](int64_t home, int64_t phase, int64_t panel) {
                                      advance(seq_.steps - 1 - phase, panel,
                                              sums_.data() + home * seq_.batch * kWidest * n);
                                    });
    finish_bias();
    if (to_.x) input_grad();
    WeightGrad<T, Of> weights(dev_, parts_.data(), kParts, gate_, seq_.frames());
    if (to_.w_ih) {
      weights.run(to_.w_ih, Cell::kInputPart, units_, [&](auto... place) { copy_input(place...); });
    }
    if (to_.w_hh) {
      weights.run(to_.w_hh, Cell::kStatePart, units_, [&](auto... place) { copy_state(place...); });
    }
  }

 private:
  struct Place {
    int64_t step, r;
  };
  int64_t row_size() const { return kParts * gate_; }
  A* parts(int64_t step, int64_t r) const {
    return parts_.data() + seq_.frame(step, r) * row_size();
  }
  A* direct(int64_t r) { return carried_.data() + r * stride_; }  // what passes by the gates
  A* d_cell(int64_t r) { return carried_.data() + (seq_.batch + r) * stride_; }
  static A initial(In<T, 2> state, int64_t b, int64_t unit) {
    return state ? A(state(b, unit)) : A(0);
  }
  Place where(int64_t frame) const {
    return {place_step_[frame], frame - seq_.frame(place_step_[frame], 0)};
  }

  static void copy_row(In<T, 3> from, int64_t t, int64_t b, int64_t first, int64_t count, A* to) {
    if (from.stride(2) == 1) {
      const T* row = &from(t, b, first);
      for (int64_t i = 0; i < count; ++i) to[i] = A(row[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = A(from(t, b, first + i));
    }
  }

  void start() {
    place_step_.resize(seq_.frames());
    for (int64_t s = 0; s < seq_.steps; ++s) {
      std::fill_n(place_step_.begin() + seq_.frame(s, 0), seq_.active(s), s);
    }
    std::fill_n(bias_.data(), kParts * stride_, A(0));
    for (int64_t r = 0; r < seq_.batch; ++r) {
      for (int64_t j = 0; j < stride_; ++j) {
        const bool inside = j < units_;
        direct(r)[j] = inside ? initial(from_.d_h_n, seq_.item(r), j) : A(0);
        d_cell(r)[j] = inside && Cell::kHasCell ? initial(from_.d_c_n, seq_.item(r), j) : A(0);
      }
    }
  }

  // Where the forward pass kept no gates they are computed again, into where their gradients will
  // be: all states are known, so that many frames are one product.
  void recompute() {
    constexpr int64_t kRows = 120;
    const int64_t inputs = layer_.inputs(), width = std::max(inputs, units_);
    const Split split(ceil_div(units_, n), kWidest / kGates, dev_.num_threads());
    const GateProducts<Cell, T> input(dev_, split, layer_.w_ih, layer_.b_ih, kRows, kRows);
    const GateProducts<Cell, T> state(dev_, split, layer_.w_hh, layer_.b_hh, kRows, kRows);
    const int64_t chunks = ceil_div(seq_.frames(), kRows), sums = kRows * kWidest * n;
    auto memory = dev_.template workspace<A>(dev_.num_threads() * (kRows * width + 2 * sums));
    const int64_t steps = seq_.frames() * split.vectors * kGates * (inputs + units_);
    run_phases<Numbers::Thread>(
        dev_, 1, split.panels * chunks, steps, [&](int64_t home, int64_t, int64_t item) {
          const int64_t panel = item % split.panels, first = item / split.panels * kRows;
          const int64_t count = std::min(kRows, seq_.frames() - first);
          A* copies = memory.data() + home * (kRows * width + 2 * sums);
          A* from_x = copies + kRows * width;
          multiply_frames(input, panel, first, count, inputs, copies, from_x,
                          &Backward::copy_input);
          multiply_frames(state, panel, first, count, units_, copies, from_x + sums,
                          &Backward::copy_state);
          for (int64_t i = 0; i < count; ++i) {
            for (int u = 0; u < split.count(panel); ++u) {
              const A* x = from_x + i * input.width(panel) + u * kGates * n;
              activate(first + i, (split.first(panel) + u) * n, x, x + sums);
            }
          }
        });
  }
  using Copy = void (Backward::*)(int64_t frame, int64_t first, int64_t count, A* to) const;
  void multiply_frames(const GateProducts<Cell, T>& products, int64_t panel, int64_t first,
                       int64_t count, int64_t depth, A* copies, A* sums, Copy copy) const {
    const A* rows[120];
    for (int64_t i = 0; i < count; ++i) {
      (this->*copy)(first + i, 0, depth, copies + i * depth);
      rows[i] = copies + i * depth;
    }
    products.multiply(panel, rows, count, sums);
  }
  void activate(int64_t frame, int64_t unit, const A* from_x, const A* from_h) {
    const auto [step, r] = where(frame);
    const int64_t b = seq_.item(r);
    V x[kGates], h[kGates], kept[Cell::kKept > 0 ? Cell::kKept : 1], c = simd::zero<A>();
    for (int g = 0; g < kGates; ++g) {
      x[g] = simd::load(from_x + g * n);
      h[g] = simd::load(from_h + g * n);
    }
    if (Cell::kHasCell) c = cell_before(step, r, b, unit);
    Cell::forward(x, h, simd::zero<A>(), c, kept);
    for (int q = 0; q < Cell::kKept; ++q) store_part(parts(step, r) + q * gate_, unit, kept[q]);
  }
  V cell_before(int64_t step, int64_t r, int64_t b, int64_t unit) const {
    return step > 0 ? load_row(from_.cells, seq_.time(step - 1, r), b, unit)
                    : load_initial(layer_.c_0, b, unit);
  }

  // Rows that the weights were multiplied with: columns [first, first + count) of a frame's.
  void copy_input(int64_t frame, int64_t first, int64_t count, A* to) const {
    const auto [step, r] = where(frame);
    copy_row(layer_.x, seq_.time(step, r), seq_.item(r), first, count, to);
  }
  void copy_state(int64_t frame, int64_t first, int64_t count, A* to) const {
    const auto [step, r] = where(frame);
    if (step > 0) {
      return copy_row(from_.y, seq_.time(step - 1, r), seq_.item(r), first, count, to);
    }
    for (int64_t i = 0; i < count; ++i) to[i] = initial(layer_.h_0, seq_.item(r), first + i);
  }

  // The gradient of the state after a step, from the gates of the next; then that of its gates.
  // Step -1 stands for the initial state.
  void advance(int64_t step, int64_t panel, A* sums) {
    const int64_t count = step < 0 ? seq_.batch : seq_.active(step), later = seq_.active(step + 1);
    const int64_t width = split_.count(panel) * n;
    std::vector<const A*> rows(static_cast<size_t>(later));
    for (int64_t r = 0; r < later; ++r) rows[r] = parts(step + 1, r);
    std::fill_n(sums, count * width, A(0));
    for (int g = 0; g < kGates && later > 0; ++g) {
      multiply<Of>(split_.count(panel), rows.data(), later, Cell::kStatePart[g] * gate_, gate_,
                   recurrent_.panel(panel, g), sums, width, sums, width);
    }
    for (int64_t r = 0; r < count; ++r) {
      for (int v = 0; v < split_.count(panel); ++v) {
        apply(step, r, (split_.first(panel) + v) * n, sums + r * width + v * n);
      }
    }
  }

  void apply(int64_t step, int64_t r, int64_t unit, const A* from_gates) {
    const int64_t b = seq_.item(r), count = units_ - unit;
    V d_h = simd::load(from_gates) + simd::load(direct(r) + unit);
    if (step < 0) {
      if (to_.h_0) store_along(to_.h_0, &to_.h_0(b, unit), d_h, count);
      if (Cell::kHasCell && to_.c_0)
        store_along(to_.c_0, &to_.c_0(b, unit), simd::load(d_cell(r) + unit), count);
      return;
    }
    const int64_t t = seq_.time(step, r), before = step > 0 ? seq_.time(step - 1, r) : 0;
    d_h = d_h + load_row(from_.d_y, t, b, unit);
    A* row = parts(step, r);
    V kept[Cell::kKept > 0 ? Cell::kKept : 1], part[kParts], d_c = simd::load(d_cell(r) + unit);
    for (int q = 0; q < Cell::kKept; ++q) {
      kept[q] = kept_gates_ ? load_along(from_.gates, &from_.gates(t, b, q * units_ + unit), count)
                            : load_part(row + q * gate_, unit);
    }
    const V h_before =
        step > 0 ? load_row(from_.y, before, b, unit) : load_initial(layer_.h_0, b, unit);
    V c = simd::zero<A>(), c_before = c;
    if (Cell::kHasCell) {
      c = load_row(from_.cells, t, b, unit);
      c_before =
          step > 0 ? load_row(from_.cells, before, b, unit) : load_initial(layer_.c_0, b, unit);
    }
    const V past =
        Cell::backward(kept, load_row(from_.y, t, b, unit), h_before, c, c_before, d_h, d_c, part);
    simd::store(direct(r) + unit, past);
    simd::store(d_cell(r) + unit, d_c);
    for (int p = 0; p < kParts; ++p) {
      store_part(row + p * gate_, unit, part[p]);
      A* sum = bias_.data() + p * stride_ + unit;
      simd::store(sum, simd::load(sum) + part[p]);
    }
  }
  // Numbers of a gate from `unit` on; bf16 where they are pairs.
  using Part = std::conditional_t<std::is_same_v<Of, Numbers>, A, T>;
  void store_part(A* gate, int64_t unit, V value) const {
    const int64_t count = units_ - unit;
    if constexpr (Of::kAreTiles) return Of::write(gate, gate_, unit, value, count);
    Part* to = reinterpret_cast<Part*>(gate) + unit;
    store_along(View<Part, 1>{to, {count}, {1}}, to, value, count);
  }
  V load_part(const A* gate, int64_t unit) const {
    if constexpr (Of::kAreTiles) return Of::read(gate, gate_, unit);
    return simd::load(reinterpret_cast<const Part*>(gate) + unit, units_ - unit);
  }
  V load_row(In<T, 3> from, int64_t t, int64_t b, int64_t unit) const {
    return load_along(from, &from(t, b, unit), units_ - unit);
  }
  V load_initial(In<T, 2> from, int64_t b, int64_t unit) const {
    return from ? load_along(from, &from(b, unit), units_ - unit) : simd::zero<A>();
  }

  void finish_bias() {
    auto store = [&](Out<T, 1> to, const int* part) {
      for (int g = 0; to && g < kGates; ++g) {
        for (int64_t j = 0; j < units_; ++j)
          to(g * units_ + j) = T(bias_.data()[part[g] * stride_ + j]);
      }
    };
    store(to_.b_ih, Cell::kInputPart);
    store(to_.b_hh, Cell::kStatePart);
  }

  // d_x = d_gates · W_ih; 0 beyond the end of a sequence
  void input_grad() {
    constexpr int64_t kRows = 240;
    const Split split(ceil_div(layer_.inputs(), n), kWidest, dev_.num_threads());
    const ColumnPanels<T, Of> panels(dev_, split, layer_.w_ih, kGates);
    const int64_t chunks = ceil_div(seq_.frames(), kRows);
    auto memory = dev_.template workspace<A>(dev_.num_threads() * kRows * kWidest * n);
    const int64_t steps = seq_.frames() * split.vectors * kGates * units_;
    run_phases<typename Of::Thread>(
        dev_, 1, split.panels * chunks, steps, [&](int64_t home, int64_t, int64_t item) {
          const int64_t panel = item / chunks, first = item % chunks * kRows;
          const int64_t count = std::min(kRows, seq_.frames() - first),
                        width = split.count(panel) * n;
          A* sums = memory.data() + home * kRows * kWidest * n;
          const A* rows[kRows];
          for (int64_t i = 0; i < count; ++i) rows[i] = parts_.data() + (first + i) * row_size();
          std::fill_n(sums, count * width, A(0));
          for (int g = 0; g < kGates; ++g) {
            multiply<Of>(split.count(panel), rows, count, Cell::kInputPart[g] * gate_, gate_,
                         panels.panel(panel, g), sums, width, sums, width);
          }
          for (int64_t i = 0; i < count; ++i) {
            const auto [step, r] = where(first + i);
            store_input(seq_.time(step, r), seq_.item(r), split.first(panel) * n, width,
                        sums + i * width);
          }
        });
    dev_.parallel(seq_.batch, [&](int64_t r) {
      for (int64_t t = seq_.length(r); t < seq_.steps; ++t) {
        for (int64_t i = 0; i < layer_.inputs(); ++i) to_.x(t, seq_.item(r), i) = T(0);
      }
    });
  }
  void store_input(int64_t t, int64_t b, int64_t first, int64_t width, const A* from) {
    const int64_t end = std::min(first + width, layer_.inputs());
    for (int64_t i = first; i < end; ++i) to_.x(t, b, i) = T(from[i - first]);
  }

  Device& dev_;
  const Layer<T>& layer_;
  const Arrived<T>& from_;
  const LayerGrads<T>& to_;
  const int64_t units_;
  const bool kept_gates_;
  const Sequences seq_;
  const Split split_;
  const ColumnPanels<T, Of> recurrent_;
  const int64_t stride_;
  const int64_t gate_;          // words of a part
  const Workspace<A> parts_;    // frame, part, unit
  const Workspace<A> carried_;  // to the step before: of the state, of the cell
  const Workspace<A> bias_;     // part, unit
  const Workspace<A> sums_;
  std::vector<int64_t> place_step_;
};

template <class Cell, class T>
void recurrent_layer_grad(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                          const LayerGrads<T>& to) {
  recurrence::check_lengths(layer);
#if NATIVEOPS_LEVEL >= 3
  if constexpr (std::is_same_v<T, bf16>)
    return Backward<Cell, T, Tiles<1>>(dev, layer, from, to).run();
  if constexpr (std::is_same_v<T, float>) {
    if (layer.high) return Backward<Cell, T, Tiles<2>>(dev, layer, from, to).run();
  }
#elif NATIVEOPS_LEVEL >= 2
  if constexpr (std::is_same_v<T, bf16>) {
    if (simd::has_pairs() && layer.units() % 2 == 0) {
      return Backward<Cell, T, Pairs>(dev, layer, from, to).run();
    }
  }
#endif
  Backward<Cell, T>(dev, layer, from, to).run();
}

}  // namespace nativeops::tuned
