// SPDX-License-Identifier: Apache-2.0
// What the gradient of a recurrent layer on the CPU needs of all steps of all sequences, and the
// gates computed again where they were not kept.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "nativeops/devices/cpu/activations.h"
#include "nativeops/devices/cpu/gate_products.h"
#include "nativeops/devices/cpu/phases.h"
#include "nativeops/devices/cpu/recurrent_rows.h"
#include "nativeops/devices/cpu/sequences.h"
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops::tuned {

// The columns of a matrix in panels; as pairs, two rows make one of words.
template <class T, class Of>
class ColumnPanels {
  using A = Accum<T>;
  static constexpr int n = simd::kLanes<A>;

 public:
  ColumnPanels(Device& dev, const Split& split, In<T, 2> matrix)
      : rows_(matrix.size(0) / Of::kPerWord), memory_(dev.workspace<A>(split.vectors * n * rows_)) {
    dev.parallel(split.panels, [&](int64_t p) {
      for (int v = 0; v < split.count(p); ++v) {
        const int64_t column = (split.first(p) + v) * n;
        const int64_t inside = std::min<int64_t>(n, matrix.size(1) - column);
        A* to = memory_.data() + split.first(p) * n * rows_ + v * n;
        if constexpr (Of::kPerWord == 2) {
          for (int64_t k = 0; k < rows_; ++k) {
            for (int64_t i = 0; i < n; ++i) {
              const auto at = [&](int64_t row) {
                return i < inside ? matrix(row, column + i) : T(0.0f);
              };
              to[k * split.count(p) * n + i] = word_of(at(2 * k), at(2 * k + 1));
            }
          }
        } else {
          const View<const T, 2> part{
              &matrix(0, column), {rows_, inside}, {matrix.stride(0), matrix.stride(1)}};
          pack(part, to, split.count(p) * n);
        }
      }
    });
  }
  // From a row of the matrix on, which must be the first of a word.
  const A* panel(const Split& split, int64_t p, int64_t row) const {
    return memory_.data() + (split.first(p) * rows_ + row / Of::kPerWord * split.count(p)) * n;
  }

 private:
  int64_t rows_;
  Workspace<A> memory_;
};

// All frames: where they are, what the weights were multiplied with there, and the gradients of
// their gates, `parts`. Of: as `Backward` has it.
template <class Cell, class T, class Of>
struct Frames {
  using A = Accum<T>;
  using Part = std::conditional_t<Of::kPerWord == 2, T, A>;
  using V = simd::Vec<A>;
  static constexpr int n = simd::kLanes<A>;
  struct Place {
    int64_t step, r;
  };

  Device& dev;
  const Layer<T>& layer;
  const Arrived<T>& from;
  const int64_t units, width;
  const Sequences seq;
  const int64_t row_size;             // parts·h, and with a second product the p of its sum
  const Workspace<Part> all, middle;  // of each frame: the parts; what the second weights multiply
  std::vector<int64_t> place_step;

  Frames(Device& dev, const Layer<T>& layer, const Arrived<T>& from)
      : dev(dev),
        layer(layer),
        from(from),
        units(layer.units()),
        width(layer.width()),
        seq(layer.x.size(0), layer.x.size(1), layer.lengths, layer.reverse),
        row_size(Cell::kParts * units + Cell::kSecond * width),
        all(dev.workspace<Part>(seq.frames() * row_size)),
        middle(dev.workspace<Part>(Cell::kSecond * seq.frames() * units)),
        place_step(seq.frames()) {
    for (int64_t s = 0; s < seq.steps; ++s) {
      std::fill_n(place_step.begin() + seq.frame(s, 0), seq.active(s), s);
    }
  }

  Part* parts(int64_t step, int64_t r) const { return all.data() + seq.frame(step, r) * row_size; }
  Place where(int64_t frame) const {
    return {place_step[frame], frame - seq.frame(place_step[frame], 0)};
  }
  static void store_part(Part* to, V value, int64_t count) {
    store_along(View<Part, 1>{to, {count}, {1}}, to, value, count);
  }
  void store_middle(int64_t step, int64_t r, int64_t unit, V value) const {
    store_part(middle.data() + seq.frame(step, r) * units + unit, value, units - unit);
  }

  V load_row(In<T, 3> rows, int64_t t, int64_t b, int64_t unit, int64_t count) const {
    return load_along(rows, &rows(t, b, unit), count);
  }
  V load_initial(In<T, 2> state, int64_t b, int64_t unit, int64_t count) const {
    return state ? load_along(state, &state(b, unit), count) : simd::zero<A>();
  }
  V cell_before(int64_t step, int64_t r, int64_t unit) const {
    const int64_t b = seq.item(r);
    return step > 0 ? load_row(from.cells, seq.time(step - 1, r), b, unit, units - unit)
                    : load_initial(layer.c_0, b, unit, units - unit);
  }
  V state_before(int64_t step, int64_t r, int64_t unit) const {
    const int64_t b = seq.item(r);
    return step > 0 ? load_row(from.y, seq.time(step - 1, r), b, unit, width - unit)
                    : load_initial(layer.h_0, b, unit, width - unit);
  }

  // Rows that the weights were multiplied with: columns [first, first + count) of a frame's.
  void copy_input(int64_t frame, int64_t first, int64_t count, A* to) const {
    const auto [step, r] = where(frame);
    copy_row(layer.x, seq.time(step, r), seq.item(r), first, count, to);
  }
  void copy_state(int64_t frame, int64_t first, int64_t count, A* to) const {
    const auto [step, r] = where(frame);
    const int64_t b = seq.item(r);
    if (step > 0) return copy_row(from.y, seq.time(step - 1, r), b, first, count, to);
    for (int64_t i = 0; i < count; ++i) to[i] = layer.h_0 ? A(layer.h_0(b, first + i)) : A(0);
  }
  void copy_middle(int64_t frame, int64_t first, int64_t count, A* to) const {
    const Part* row = middle.data() + frame * units + first;
    for (int64_t i = 0; i < count; ++i) to[i] = A(row[i]);
  }
  static void copy_row(In<T, 3> rows, int64_t t, int64_t b, int64_t first, int64_t count, A* to) {
    const T* row = &rows(t, b, first);
    const int64_t stride = rows.stride(2);
    if (stride == 1) {
      for (int64_t i = 0; i < count; ++i) to[i] = A(row[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = A(row[i * stride]);
    }
  }
};

// Where the forward pass kept no gates they are computed again, into where their gradients will be:
// all states are known, so that many frames are one product.
template <class Cell, class T, class Of>
class Again {
  using F = Frames<Cell, T, Of>;
  using A = typename F::A;
  using V = typename F::V;
  using Copy = void (F::*)(int64_t frame, int64_t first, int64_t count, A* to) const;
  static constexpr int n = F::n, kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  static constexpr int64_t kRows = 120;

 public:
  explicit Again(const F& frames)
      : f_(frames), split_(ceil_div(f_.units, n), kWidest / kGates, f_.dev.num_threads()) {}

  void run() {
    const Layer<T>& layer = f_.layer;
    const GateProducts<Gates<kGates>, T> input(f_.dev, split_, layer.w_ih, layer.b_ih, kRows,
                                               kRows);
    const GateProducts<Gates<kStateGates>, T> state(f_.dev, split_, layer.w_hh, layer.b_hh, kRows,
                                                    kRows);
    const int64_t depth = layer.inputs() + f_.width;
    for_panels(kGates * depth, [&](int64_t panel, int64_t first, int64_t count, A* memory) {
      A* from_h = multiply(input, panel, first, count, layer.inputs(), memory, &F::copy_input);
      multiply(state, panel, first, count, f_.width, from_h, &F::copy_state);
      for (int64_t i = 0; i < count * split_.count(panel); ++i) {
        activate(first + i / split_.count(panel),
                 (split_.first(panel) + i % split_.count(panel)) * n, memory + i * kGates * n,
                 from_h + i * kStateGates * n);
      }
    });
    if constexpr (Cell::kKeptLate > 0) run_second();
  }

 private:
  // body(panel, first, count, memory) for blocks of frames.
  template <class B>
  void for_panels(int64_t depth, B&& body) {
    const int64_t chunks = ceil_div(f_.seq.frames(), kRows), sums = kRows * kWidest * n;
    const int64_t size = 2 * sums + kRows * std::max({f_.layer.inputs(), f_.width, f_.units});
    auto memory = f_.dev.template workspace<A>(f_.dev.num_threads() * size);
    run_phases(f_.dev, 1, split_.panels * chunks, f_.seq.frames() * split_.vectors * depth,
               [&](int64_t home, int64_t, int64_t item) {
                 const int64_t first = item / split_.panels * kRows;
                 body(item % split_.panels, first, std::min(kRows, f_.seq.frames() - first),
                      memory.data() + home * size);
               });
  }

  // The sums to `to`; gives what is behind them, where rows were copied.
  template <class Products>
  A* multiply(const Products& products, int64_t panel, int64_t first, int64_t count, int64_t depth,
              A* to, Copy copy) const {
    const A* rows[kRows];
    A* copies = to + kRows * kWidest * n;
    for (int64_t i = 0; i < count; ++i) {
      (f_.*copy)(first + i, 0, depth, copies + i * depth);
      rows[i] = copies + i * depth;
    }
    products.multiply(panel, rows, count, to);
    return copies;
  }

  void activate(int64_t frame, int64_t unit, const A* from_x, const A* from_h) {
    const auto [step, r] = f_.where(frame);
    V x[kGates], h[kStateGates], kept[Cell::kKept > 0 ? Cell::kKept : 1], c = simd::zero<A>();
    for (int g = 0; g < kGates; ++g) x[g] = simd::load(from_x + g * n);
    for (int g = 0; g < kStateGates; ++g) h[g] = simd::load(from_h + g * n);
    if (Cell::kHasCell) c = f_.cell_before(step, r, unit);
    const V before = Cell::kReadsState ? f_.state_before(step, r, unit) : simd::zero<A>();
    const OwnVectors<T> own{f_.layer.own, unit, f_.units};
    const V out = Cell::forward(x, h, before, c, kept, own);
    if (Cell::kSecond) f_.store_middle(step, r, unit, out);
    for (int q = 0; q < Cell::kKept; ++q) {
      const V value = q < Cell::kKept - Cell::kKeptLate ? kept[q] : x[q];
      F::store_part(f_.parts(step, r) + q * f_.units + unit, value, f_.units - unit);
    }
  }

  // What is kept late, from what stands in its place: the sums of the inputs.
  void run_second() {
    const GateProducts<Gates<1>, T> second(f_.dev, split_, f_.layer.w_second, f_.layer.b_second,
                                           kRows, kRows);
    for_panels(f_.units, [&](int64_t panel, int64_t first, int64_t count, A* memory) {
      multiply(second, panel, first, count, f_.units, memory, &F::copy_middle);
      for (int64_t i = 0; i < count * split_.count(panel); ++i) {
        finish(first + i / split_.count(panel), (split_.first(panel) + i % split_.count(panel)) * n,
               simd::load(memory + i * n));
      }
    });
  }
  void finish(int64_t frame, int64_t unit, V sum) {
    const auto [step, r] = f_.where(frame);
    auto* row = f_.parts(step, r) + unit;
    const int64_t count = f_.units - unit;
    V x[kGates], kept[Cell::kKept];
    for (int g = 0; g < kGates; ++g) x[g] = simd::load(row + g * f_.units, count);
    Cell::finish(x, sum, f_.state_before(step, r, unit), kept);
    for (int q = Cell::kKept - Cell::kKeptLate; q < Cell::kKept; ++q) {
      F::store_part(row + q * f_.units, kept[q], count);
    }
  }

  const F& f_;
  const Split split_;
};

}  // namespace nativeops::tuned
