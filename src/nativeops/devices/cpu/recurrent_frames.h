// SPDX-License-Identifier: Apache-2.0
// What the gradient of a recurrent layer on the CPU needs of all steps of all sequences, and the
// gates computed again where they were not kept.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "nativeops/devices/cpu/activations.h"
#include "nativeops/devices/cpu/dots.h"
#include "nativeops/devices/cpu/gate_products.h"
#include "nativeops/devices/cpu/phases.h"
#include "nativeops/devices/cpu/recurrent_rows.h"
#include "nativeops/devices/cpu/sequences.h"
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops::tuned {

// The columns of the weights of all gates in panels, gate below gate; as pairs, two rows make one
// of words. For a few rows in all they are read as they lie.
template <class T, class Of>
class ColumnPanels {
  using A = Accum<T>;
  static constexpr int n = simd::kLanes<A>;

 public:
  // rows: how many will be multiplied in all, at most; needed: whether any will.
  ColumnPanels(Device& dev, In<T, 2> matrix, int gates, int64_t rows, bool needed = true)
      : split(ceil_div(matrix.size(1), n), lies(matrix, rows) ? kAll : Of::kWide,
              dev.num_threads()),
        matrix_(matrix),
        lies_(lies(matrix, rows)),
        units_(matrix.size(0) / gates),
        gate_(Of::words(units_)),
        gates_(gates),
        memory_(dev.workspace<A>(lies_ || !needed ? 0 : split.vectors * n * gates * gate_)) {
    if (memory_.data() == nullptr) return;
    parallel_if_large(dev, split.panels, split.vectors * gates * gate_, [&](int64_t p) {
      for (int g = 0; g < gates; ++g) {
        const View<const T, 2> gate{
            &matrix(g * units_, 0), {units_, matrix.size(1)}, {matrix.stride(0), matrix.stride(1)}};
        const int count = split.count(p);
        prepare(part(gate, 0, units_, split.first(p) * n, count * n), panel(p, g), count);
      }
    });
  }

  const Split split;
  int64_t widest() const { return ceil_div(split.vectors, std::max<int64_t>(1, split.panels)) * n; }

  // sums[r] += rows[r], from `offset` on, times the panel of a gate; alone: as `multiply` has it.
  // next: the panel that is used after all gates of this one, if any.
  void add(int64_t p, int gate, const A* const* rows, int64_t count, int64_t offset, A* sums,
           bool alone, int64_t next = -1) const {
    const int64_t width = split.count(p) * n;
    if constexpr (std::is_same_v<Of, Numbers> && std::is_same_v<A, T>) {
      if (lies_) {
        const int64_t column = split.first(p) * n;
        return add_rows(rows, count, offset, units_, &matrix_(gate * units_, column),
                        matrix_.stride(0), std::min(width, matrix_.size(1) - column), sums, width);
      }
    }
    multiply<Of>(split.count(p), rows, count, offset, gate_, panel(p, gate), sums, width, sums,
                 width, alone, after(p, gate, next));
  }

 private:
  static constexpr int64_t kAll = std::numeric_limits<int32_t>::max();

  static bool lies(In<T, 2> matrix, int64_t rows) {
    return std::is_same_v<Of, Numbers> && std::is_same_v<A, T> && matrix.stride(1) == 1 &&
           rows <= kFewForPacking;
  }
  A* panel(int64_t p, int gate) const {
    return memory_.data() + (split.first(p) * gates_ + gate * split.count(p)) * gate_ * n;
  }
  // What is read after the panel of a gate.
  const A* after(int64_t p, int gate, int64_t next) const {
    if (gate + 1 < gates_) return panel(p, gate + 1);
    return next < 0 || next >= split.panels ? nullptr : panel(next, 0);
  }
  void prepare(const View<const T, 2>& from, A* to, int vectors) const {
    if constexpr (!Of::kAreTiles && Of::kPerWord == 1) {
      return pack(from, to, vectors * n);
    } else {
      for (int v = 0; v < vectors; ++v) {
        prepare(part(from, 0, units_, v * n, n), to, vectors, v);
      }
    }
  }
  void prepare(const View<const T, 2>& from, A* to, int vectors, int v) const {
    if constexpr (Of::kAreTiles) {
      Of::pack(from, to, vectors, v, gate_);
    } else {
      const auto at = [&](int64_t row) {
        return row < units_ ? load_along(from, &from(row, 0), from.size(1)) : simd::zero<A>();
      };
      for (int64_t k = 0; k < gate_; ++k) {
        simd::store(to + (k * vectors + v) * n, simd::words_of(at(2 * k), at(2 * k + 1)));
      }
    }
  }

  const In<T, 2> matrix_;
  const bool lies_;
  const int64_t units_, gate_;  // of a gate; gate_ in words
  const int gates_;
  const Workspace<A> memory_;
};

// All frames: where they are, what the weights were multiplied with there, and the gradients of
// their gates, `parts`. Of: as `Backward` has it.
template <class Cell, class T, class Of>
struct Frames {
  using A = Accum<T>;
  using Part = std::conditional_t<std::is_same_v<Of, Numbers>, A, T>;
  using V = simd::Vec<A>;
  static constexpr int n = simd::kLanes<A>;
  struct Place {
    int64_t step, r;
  };

  Device& dev;
  const Layer<T>& layer;
  const Arrived<T>& from;
  const int64_t units, width;
  const Sequences<T> seq;
  const int64_t gate, sum;       // words of a part: of h, and of the p of a second product's sum
  const int64_t row_size;        // of all parts, that sum behind the others
  const Workspace<A> all;        // of each frame: the parts
  const Workspace<Part> middle;  // of each frame: what the second weights multiply
  std::vector<int64_t> place_step;

  Frames(Device& dev, const Layer<T>& layer, const Arrived<T>& from)
      : dev(dev),
        layer(layer),
        from(from),
        units(layer.units()),
        width(layer.width()),
        seq(layer),
        gate(Of::words(units)),
        sum(Cell::kSecond ? Of::words(width) : 0),
        row_size(Cell::kParts * gate + sum),
        all(dev.workspace<A>(seq.frames() * row_size)),
        middle(dev.workspace<Part>(Cell::kSecond * seq.frames() * units)),
        place_step(seq.frames()) {
    for (int64_t s = 0; s < seq.steps; ++s) {
      std::fill_n(place_step.begin() + seq.frame(s, 0), seq.active(s), s);
    }
  }

  A* parts(int64_t step, int64_t r) const { return all.data() + seq.frame(step, r) * row_size; }
  Place where(int64_t frame) const {
    return {place_step[frame], frame - seq.frame(place_step[frame], 0)};
  }
  // A part from `unit` on of a frame's `parts`: of `units` numbers, behind the others of `width`.
  void store_part(A* parts, int p, int64_t unit, V value) const {
    A* part = parts + p * gate;
    const int64_t count = (p < Cell::kParts ? units : width) - unit;
    if constexpr (Of::kAreTiles) {
      Of::write(part, p < Cell::kParts ? gate : sum, unit, value, count);
    } else {
      Part* const to = reinterpret_cast<Part*>(part) + unit;
      store_numbers(to, value, count);
      // The rest of the last word is multiplied with a weight of 0, which NaN would survive.
      if (count < n && count % Of::kPerWord != 0) to[count] = Part(A(0));
    }
  }
  V load_part(const A* parts, int p, int64_t unit) const {
    const A* part = parts + p * gate;
    if constexpr (Of::kAreTiles) return Of::read(part, gate, unit);
    return simd::load(reinterpret_cast<const Part*>(part) + unit, units - unit);
  }
  void store_middle(int64_t step, int64_t r, int64_t unit, V value) const {
    store_numbers(middle.data() + seq.frame(step, r) * units + unit, value, units - unit);
  }
  static void store_numbers(Part* to, V value, int64_t count) {
    store_along(View<Part, 1>{to, {count}, {1}}, to, value, count);
  }

  Line<T> line(In<T, 3> rows, int64_t step, int64_t r) const {
    return {&rows(seq.time(step, r), seq.item(r), 0), rows.stride(2)};
  }
  Line<T> line(In<T, 2> state, int64_t r) const {
    return {state ? &state(seq.item(r), 0) : nullptr, state.stride(1)};
  }
  Line<T> cell_before(int64_t step, int64_t r) const {
    return step > 0 ? line(from.cells, step - 1, r) : line(layer.c_0, r);
  }
  Line<T> state_before(int64_t step, int64_t r) const {
    return step > 0 ? line(from.y, step - 1, r) : line(layer.h_0, r);
  }

  // Rows that the weights were multiplied with: columns [first, first + count) of a frame's.
  void copy_input(int64_t frame, int64_t first, int64_t count, A* to) const {
    const auto [step, r] = where(frame);
    fetch_later(frame, layer.x, 0, first, count);
    copy_row(layer.x, seq.time(step, r), seq.item(r), first, count, to);
  }
  void copy_state(int64_t frame, int64_t first, int64_t count, A* to) const {
    const auto [step, r] = where(frame);
    const int64_t b = seq.item(r);
    const bool known = step > 0 || layer.h_0;
    if (!known || seq.begins_anew(step, r)) return void(std::fill_n(to, count, A(0)));
    fetch_later(frame, from.y, 1, first, count);
    if (step > 0) return copy_row(from.y, seq.time(step - 1, r), b, first, count, to);
    for (int64_t i = 0; i < count; ++i) to[i] = A(layer.h_0(b, first + i));
  }
  // What will be copied a few frames later, `before` steps before it.
  [[gnu::always_inline]] void fetch_later(int64_t frame, In<T, 3> rows, int64_t before,
                                          int64_t first, int64_t count) const {
    constexpr int64_t kLater = 16;
    if (!seq.scattered() || frame + kLater >= seq.frames()) return;
    const auto [step, r] = where(frame + kLater);
    if (step >= before) line(rows, step - before, r).fetch(first, count);
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
    const GateProducts<Gates<kGates>, T> input(f_.dev, split_, layer.w_ih, layer.b_ih, kRows);
    const GateProducts<Gates<kStateGates>, T> state(f_.dev, split_, layer.w_hh, layer.b_hh, kRows);
    input.make_all_ready(f_.dev);
    state.make_all_ready(f_.dev);
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
    run_phases<Numbers::Thread>(
        f_.dev, 1, split_.panels * chunks, f_.seq.frames() * split_.vectors * depth,
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
    products.multiply(panel, rows, count, to, count == 1);
    return copies;
  }

  void activate(int64_t frame, int64_t unit, const A* from_x, const A* from_h) {
    const auto [step, r] = f_.where(frame);
    V x[kGates], h[kStateGates], kept[Cell::kKept > 0 ? Cell::kKept : 1], c = simd::zero<A>(),
                                                                          before = c;
    for (int g = 0; g < kGates; ++g) x[g] = simd::load(from_x + g * n);
    for (int g = 0; g < kStateGates; ++g) h[g] = simd::load(from_h + g * n);
    if (Cell::kHasCell) c = f_.cell_before(step, r).load(unit, f_.units - unit);
    if (Cell::kReadsState) before = f_.state_before(step, r).load(unit, f_.width - unit);
    const OwnVectors<T, One> own{f_.layer.own, f_.units, {unit}};
    const V out = Cell::forward(x, h, before, c, kept, own);
    if (Cell::kSecond) f_.store_middle(step, r, unit, out);
    for (int q = 0; q < Cell::kKept; ++q) {
      const V value = q < Cell::kKept - Cell::kKeptLate ? kept[q] : x[q];
      f_.store_part(f_.parts(step, r), q, unit, value);
    }
  }

  // What is kept late, from what stands in its place: the sums of the inputs.
  void run_second() {
    const GateProducts<Gates<1>, T> second(f_.dev, split_, f_.layer.w_second, f_.layer.b_second,
                                           kRows);
    second.make_all_ready(f_.dev);
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
    V x[kGates], kept[Cell::kKept];
    A* parts = f_.parts(step, r);
    for (int g = 0; g < kGates; ++g) x[g] = f_.load_part(parts, g, unit);
    Cell::finish(x, sum, f_.state_before(step, r).load(unit, f_.width - unit), kept);
    for (int q = Cell::kKept - Cell::kKeptLate; q < Cell::kKept; ++q) {
      f_.store_part(parts, q, unit, kept[q]);
    }
  }

  const F& f_;
  const Split split_;
};

}  // namespace nativeops::tuned
