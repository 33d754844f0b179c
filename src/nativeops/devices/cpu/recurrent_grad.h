// SPDX-License-Identifier: Apache-2.0
// The gradient of the recurrent layer on the CPU, generic over its cell. Step by step from the last
// to the first, the gradients of all gates are computed into one array over all steps; from it the
// gradients of inputs and weights follow as large products over all steps together.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "nativeops/devices/cpu/recurrent.h"
#include "nativeops/devices/cpu/recurrent_frames.h"
#include "nativeops/devices/cpu/weight_grad.h"

namespace nativeops::tuned {

// Of: what the products are made of, and the gates' gradients kept as.
template <class Cell, class T, class Of = Numbers>
class Backward {
  using F = Frames<Cell, T, Of>;
  using A = typename F::A;
  using V = typename F::V;
  static constexpr int n = F::n, kGates = Cell::kGates, kParts = Cell::kParts,
                       kStages = 1 + Cell::kSecond, kSums = kParts + Cell::kSecond;
  static constexpr int64_t kRows = 240;  // of d_x, taken together
  // The same where another layer follows this one: it waits for as many.
  static constexpr int64_t kRowsAtOnce = Of::kAreTiles ? 32 : 6;

 public:
  Backward(Device& dev, const Layer<T>& layer, const Arrived<T>& from, const LayerGrads<T>& to)
      : dev_(dev),
        layer_(layer),
        from_(from),
        to_(to),
        f_(dev, layer, from),
        seq_(f_.seq),
        units_(f_.units),
        width_(f_.width),
        kept_gates_(Cell::kKept == 0 || from.gates),
        recurrent_(dev, layer.w_hh, Cell::kStateGates, seq_.frames(),
                   to.h_0 || seq_.frames() > seq_.active(0)),
        second_(dev, layer.w_second, 1, seq_.frames()),
        split_(recurrent_.split),
        unit_split_(second_.split),
        sums_size_(seq_.batch * std::max(recurrent_.widest(), second_.widest())),
        inputs_from_(seq_.longest()),
        direct_(dev, seq_.batch, width_),
        d_cell_(dev, Cell::kHasCell ? seq_.batch : 0, units_),
        bias_(dev, kSums + Cell::kOwn, std::max(units_, width_)),
        totals_(dev, kSums + Cell::kOwn, std::max(units_, width_)),
        sums_(dev.workspace<A>(dev.num_threads() * sums_size_)) {}

  void run() {
    start();
    if (!kept_gates_) Again<Cell, T, Of>(f_).run();
    const int64_t steps = seq_.frames() * (split_.vectors * Cell::kStateGates * units_ +
                                           unit_split_.vectors * width_);
    const int64_t items = std::max(split_.panels, unit_split_.panels);
    run_phases<typename Of::Thread>(
        dev_, kStages * seq_.longest() + 1, items, steps,
        [&](int64_t home, int64_t phase, int64_t item, int64_t next) {
          const int64_t step = seq_.longest() - 1 - phase / kStages;
          if (dev_.before) dev_.before->wait_for(std::min(phase / kStages + 1, seq_.longest()));
          if (dev_.after && is_chunk(step + 1)) input_grads(step + 1);
          const bool second = phase % kStages == 1;
          const Split& split = second ? unit_split_ : split_;
          const auto [panel, end] = split.of_item(item, items);
          if (panel == end) return;
          const int64_t soon = next < 0 ? -1 : split.of_item(next, items).first;
          A* sums = sums_.data() + home * sums_size_;
          second ? second_half(step, panel, soon, sums) : advance(step, panel, soon, sums);
        },
        kStages);
    finish_sums();
    input_grads(0);
    inputs_.reset();
    if (to_.x) clear_beyond(dev_, seq_, to_.x);
    if (to_.sums) write_sums();
    weight_grads();
  }

 private:
  A* direct(int64_t r) const { return direct_.numbers(r); }  // what passes by the gates
  A* d_cell(int64_t r) const { return d_cell_.numbers(r); }

  // What is read and written of a frame, looked up once for all its units.
  struct Row {
    int64_t step, r;
    Line<T> d_y, y{}, gates{}, cell{}, cell_before{}, state_before{};
    A *direct, *d_cell, *parts;

    Row(const Backward& all, int64_t step, int64_t r)
        : step(step),
          r(r),
          d_y(all.f_.line(all.from_.d_y, step, r)),
          direct(all.direct(r)),
          d_cell(all.d_cell(r)),
          parts(all.f_.parts(step, r)) {
      if (!Cell::kSecond) y = all.f_.line(all.from_.y, step, r);
      if (all.kept_gates_ && Cell::kKept > 0) gates = all.f_.line(all.from_.gates, step, r);
      if (Cell::kHasCell) cell = all.f_.line(all.from_.cells, step, r);
      if (Cell::kHasCell) cell_before = all.f_.cell_before(step, r);
      if (Cell::kReadsState) state_before = all.f_.state_before(step, r);
    }
  };

  void start() {
    for (int q = 0; q < kSums + Cell::kOwn; ++q) bias_.fill(q, {}, 0), totals_.fill(q, {}, 0);
    for (int64_t r = 0; r < seq_.batch; ++r) {
      direct_.fill(r, from_.d_h_n, seq_.item(r));
      if (Cell::kHasCell) d_cell_.fill(r, from_.d_c_n, seq_.item(r));
    }
  }

  // The gradient of the state after a step, from the gates of the next; then that of its gates, or
  // of the sum of its second product. Step -1 stands for the initial state.
  void advance(int64_t step, int64_t panel, int64_t next, A* sums) {
    if (step < 0 && !to_.h_0) return;
    const int64_t count = step < 0 ? seq_.batch : seq_.active(step), later = seq_.active(step + 1);
    const int64_t width = split_.count(panel) * n;
    std::vector<const A*> rows(static_cast<size_t>(later));
    for (int64_t r = 0; r < later; ++r) rows[r] = f_.parts(step + 1, r);
    fetch_rows(rows.data(), later, f_.row_size);
    std::fill_n(sums, count * width, A(0));
    for (int g = 0; g < Cell::kStateGates && later > 0; ++g) {
      recurrent_.add(panel, g, rows.data(), later, Cell::kStatePart[g] * f_.gate, sums, later == 1,
                     next);
    }
    for (int64_t r = 0; r < later; ++r) {
      if (seq_.begins_anew(step + 1, r)) std::fill_n(sums + r * width, width, A(0));
    }
    const int64_t first = split_.first(panel) * n;
    for (int64_t r = 0; r < count; ++r) {
      if (step < 0) {
        give_initial(r, first, width, sums + r * width);
      } else {
        if constexpr (!Cell::kSecond) fetch_soon(step, r, first, width);
        arrive(Row(*this, step, r), first, width, sums + r * width);
      }
    }
    if (!Cell::kSecond) return add_to_totals(step, 0, kSums + Cell::kOwn, first, width);
    add_to_totals(step, kParts - Cell::kPartsEarly, kSums, first, width);
  }
  // What `apply` will read a few sequences later: those of other lengths lie in an order that no
  // processor foresees. The whole gradient of 32 of them and 64 units takes 20 % less (Zen5 EPYC,
  // 2026-11). Inlined as `fetch_rows` is.
  [[gnu::always_inline]] void fetch_soon(int64_t step, int64_t r, int64_t first,
                                         int64_t width) const {
    constexpr int64_t kAhead = 8;
    r += kAhead;
    if (r >= seq_.active(step)) r -= seq_.active(step), --step;
    if (step < 0 || r >= seq_.active(step)) return;
    const Row row(*this, step, r);
    for (int q = 0; q < Cell::kKept; ++q) row.gates.fetch(q * units_ + first, width);
    row.d_y.fetch(first, width);
    row.cell_before.fetch(first, width);  // the cell is that of the step before
    row.state_before.fetch(first, width);
    if (Cell::kKept == 0) row.y.fetch(first, width);
  }
  void give_initial(int64_t r, int64_t first, int64_t width, const A* from_gates) {
    for (int64_t v = 0; v < width; v += n) {
      const V d_h = simd::load(from_gates + v) + simd::load(direct(r) + first + v);
      store_along(to_.h_0, &to_.h_0(seq_.item(r), first + v), d_h, width_ - first - v);
    }
  }
  void arrive(const Row& row, int64_t first, int64_t width, const A* from_gates) {
    for (int64_t v = 0; v < width; v += n) {
      const int64_t unit = first + v;
      const V d_h = simd::load(from_gates + v) + simd::load(row.direct + unit);
      const V d_out = d_h + row.d_y.load(unit, width_ - unit);
      if constexpr (Cell::kSecond) {
        early(row, unit, d_out);
      } else {
        apply(row, unit, d_out);
      }
    }
  }

  // The chain rule of the cell's `finish`.
  void early(const Row& row, int64_t unit, V d_out) {
    V kept[Cell::kKept], part[kParts], sum, state = simd::zero<A>();
    if (Cell::kPartsEarly > 0) load_kept(row, unit, kept);
    if (Cell::kReadsState) state = row.state_before.load(unit, width_ - unit);
    simd::store(row.direct + unit, Cell::early(kept, state, d_out, sum, part));
    keep_part(row, kParts, unit, sum);
    for (int p = kParts - Cell::kPartsEarly; p < kParts; ++p) keep_part(row, p, unit, part[p]);
  }

  // The gradient of what the second weights are multiplied with, and then of the gates.
  void second_half(int64_t step, int64_t panel, int64_t next, A* sums) {
    if constexpr (Cell::kSecond) {
      const int64_t count = seq_.active(step), width = unit_split_.count(panel) * n;
      std::vector<const A*> rows(static_cast<size_t>(count));
      for (int64_t r = 0; r < count; ++r) rows[r] = f_.parts(step, r);
      std::fill_n(sums, count * width, A(0));
      second_.add(panel, 0, rows.data(), count, kParts * f_.gate, sums, count == 1, next);
      const int64_t first = unit_split_.first(panel) * n;
      for (int64_t r = 0; r < count; ++r) {
        const Row row(*this, step, r);
        for (int64_t v = 0; v < width; v += n) {
          apply(row, first + v, simd::load(sums + r * width + v));
        }
      }
      add_to_totals(step, 0, kParts - Cell::kPartsEarly, first, width);
      add_to_totals(step, kSums, kSums + Cell::kOwn, first, width);
    }
  }

  // The chain rule of the cell's `forward`.
  [[gnu::always_inline]] void apply(const Row& row, int64_t unit, V d_out) {
    const int64_t count = units_ - unit;
    V kept[Cell::kKept > 0 ? Cell::kKept : 1], part[kParts], c = simd::zero<A>(), d_c = c,
                                                             c_before = c, state = c, out = c;
    load_kept(row, unit, kept);
    if (Cell::kHasCell) {
      d_c = simd::load(row.d_cell + unit);
      c = row.cell.load(unit, count);
      c_before = row.cell_before.load(unit, count);
    }
    if (Cell::kReadsState) state = row.state_before.load(unit, count);
    if (!Cell::kSecond) out = row.y.load(unit, count);
    const OwnVectors<T, One> own{layer_.own, units_, {unit}};
    const V past = Cell::backward(kept, out, state, c, c_before, d_out, d_c, part, own);
    if (!Cell::kSecond) simd::store(row.direct + unit, past);
    if constexpr (Cell::kSecond) {
      A* passing = row.direct + unit;
      if (Cell::kReadsState) simd::store(passing, simd::load(passing) + past);
      f_.store_middle(row.step, row.r, unit, Cell::middle(kept, state, c));
    }
    if (Cell::kHasCell) simd::store(row.d_cell + unit, d_c);
    for (int p = 0; p < kParts - Cell::kPartsEarly; ++p) keep_part(row, p, unit, part[p]);
    if constexpr (Cell::kOwn > 0) {
      if (to_.own) add_own(unit, part, c, c_before);
    }
  }
  void load_kept(const Row& row, int64_t unit, V* kept) const {
    // Loops would keep these vectors in memory.
    simd::unroll<Cell::kKept>([&](auto q) __attribute__((always_inline)) {
      kept[q] = kept_gates_ ? row.gates.load(q * units_ + unit, units_ - unit)
                            : f_.load_part(row.parts, q, unit);
    });
  }
  // A part of a frame, and its share in the sum over all frames.
  void keep_part(const Row& row, int p, int64_t unit, V part) {
    f_.store_part(row.parts, p, unit, part);
    A* sum = bias_.numbers(p) + unit;
    simd::store(sum, simd::load(sum) + part);
  }
  void add_own(int64_t unit, const V* part, V c, V c_before) {
    V sum[Cell::kOwn];
    for (int q = 0; q < Cell::kOwn; ++q) sum[q] = simd::load(bias_.numbers(kSums + q) + unit);
    Cell::add_own(part, c, c_before, sum);
    for (int q = 0; q < Cell::kOwn; ++q) simd::store(bias_.numbers(kSums + q) + unit, sum[q]);
  }

  // Adds the sums of some steps to those of all before: one number to which a million are added one
  // after the other keeps three digits.
  void add_to_totals(int64_t step, int from, int end, int64_t first, int64_t width) {
    if (step % max2<int64_t>(1, 256 / max2<int64_t>(1, seq_.batch)) != 0) return;
    for (int q = from; q < end; ++q) {
      A *sum = bias_.numbers(q) + first, *all = totals_.numbers(q) + first;
      for (int64_t k = 0; k < width; ++k) all[k] += sum[k], sum[k] = 0;
    }
  }

  // What is summed up over all frames, and the gradient of the initial cell. Step 0, the last one,
  // has brought all sums to the totals.
  void finish_sums() {
    const auto store = [&](Out<T, 1> to, int count, auto part) {
      for (int g = 0; to && g < count; ++g) {
        for (int64_t j = 0; j < units_; ++j) to(g * units_ + j) = T(totals_.numbers(part(g))[j]);
      }
    };
    store(to_.b_ih, kGates, [](int g) { return Cell::kInputPart[g]; });
    store(to_.b_hh, Cell::kStateGates, [](int g) { return Cell::kStatePart[g]; });
    store(to_.own, Cell::kOwn, [](int q) { return kSums + q; });
    for (int64_t j = 0; to_.b_second && j < width_; ++j) {
      to_.b_second(j) = T(totals_.numbers(kParts)[j]);
    }
    for (int64_t r = 0; Cell::kHasCell && to_.c_0 && r < seq_.batch; ++r) {
      for (int64_t j = 0; j < units_; ++j) to_.c_0(seq_.item(r), j) = T(d_cell(r)[j]);
    }
  }

  void weight_grads() {
    using F = Frames<Cell, T, Of>;
    static constexpr int kOnly[] = {kParts};
    WeightGrad<T, Of> weights(dev_, f_.all.data(), kParts, f_.gate, f_.sum, seq_.frames());
    std::vector<void (F::*)(int64_t, int64_t, int64_t, A*) const> right;  // of each matrix
    if (to_.w_ih) {
      weights.add(to_.w_ih, Cell::kInputPart, units_);
      right.push_back(&F::copy_input);
    }
    if (to_.w_hh) {
      weights.add(to_.w_hh, Cell::kStatePart, units_);
      right.push_back(&F::copy_state);
    }
    if (Cell::kSecond && to_.w_second) {
      weights.add(to_.w_second, kOnly, width_);
      right.push_back(&F::copy_middle);
    }
    if (right.empty()) return;
    weights.run([&](int i, auto... place) { (f_.*right[i])(place...); });
  }

  // d_sums = d_gates; 0 beyond the end of a sequence
  void write_sums() {
    parallel_if_large(dev_, seq_.frames(), seq_.frames() * kGates * units_, [&](int64_t frame) {
      const auto [step, r] = f_.where(frame);
      const int64_t t = seq_.time(step, r), b = seq_.item(r);
      for (int g = 0; g < kGates; ++g) {
        for (int64_t unit = 0; unit < units_; unit += n) {
          const V part = f_.load_part(f_.parts(step, r), Cell::kInputPart[g], unit);
          store_along(to_.sums, &to_.sums(t, b, g * units_ + unit), part, units_ - unit);
        }
      }
    });
    clear_beyond(dev_, seq_, to_.sums);
  }

  // Whether the layer that follows this one, if any, is told of the gradients from a step on.
  bool is_chunk(int64_t step) const {
    return step < inputs_from_ && (step == 0 || (inputs_from_ - step) * seq_.batch >= kRowsAtOnce);
  }

  // What d_x is computed with.
  struct InputProducts {
    const ColumnPanels<T, Of> panels;
    const int64_t size;
    const Workspace<A> sums;

    InputProducts(Device& dev, const Layer<T>& layer, const Sequences<T>& seq)
        : panels(dev, layer.w_ih, kGates, seq.frames()),
          size(std::min(kRows, seq.frames()) * panels.widest()),
          sums(dev.workspace<A>(dev.num_threads() * size)) {}
  };

  // d_x = d_gates · W_ih, from a step on to where it is known
  void input_grads(int64_t step) {
    const int64_t begin = seq_.frame(step, 0), end = seq_.frame(inputs_from_, 0);
    inputs_from_ = step;
    if (to_.x && begin < end) input_grads(begin, end);
    if (dev_.after) dev_.after->reach(seq_.longest() - step);
  }
  void input_grads(int64_t begin, int64_t end) {
    if (!inputs_) inputs_.emplace(dev_, layer_, seq_);
    const ColumnPanels<T, Of>& panels = inputs_->panels;
    const Split& split = panels.split;
    const int64_t chunks = ceil_div(end - begin, kRows);
    const int64_t steps = (end - begin) * split.vectors * kGates * units_;
    run_phases<typename Of::Thread>(
        dev_, 1, split.panels * chunks, steps, [&](int64_t home, int64_t, int64_t item) {
          const int64_t panel = item / chunks, first = begin + item % chunks * kRows;
          const int64_t count = std::min(kRows, end - first), width = split.count(panel) * n;
          A* sums = inputs_->sums.data() + home * inputs_->size;
          const A* rows[kRows];
          for (int64_t i = 0; i < count; ++i) rows[i] = f_.all.data() + (first + i) * f_.row_size;
          std::fill_n(sums, count * width, A(0));
          for (int g = 0; g < kGates; ++g) {
            panels.add(panel, g, rows, count, Cell::kInputPart[g] * f_.gate, sums,
                       seq_.frames() == 1);
          }
          for (int64_t i = 0; i < count; ++i) {
            const auto [step, r] = f_.where(first + i);
            store_input(seq_.time(step, r), seq_.item(r), split.first(panel) * n, width,
                        sums + i * width);
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
  const Frames<Cell, T, Of> f_;
  const Sequences<T>& seq_;
  const int64_t units_, width_;
  const bool kept_gates_;
  const ColumnPanels<T, Of> recurrent_, second_;
  const Split &split_, &unit_split_;  // of the state; with a second product, of the units
  const int64_t sums_size_;
  int64_t inputs_from_;  // the step from which on d_x is known
  std::optional<InputProducts> inputs_;
  const Rows<T, Numbers> direct_, d_cell_;  // carried to the step before
  const Rows<T, Numbers> bias_, totals_;    // over some steps and all: of the parts, of own weights
  const Workspace<A> sums_;
};

template <class Cell, class T>
void recurrent_layer_grad(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                          const LayerGrads<T>& to) {
  recurrence::check_lengths(layer);
#if NATIVEOPS_LEVEL >= 3
  if constexpr (std::is_same_v<T, bf16>) {
    return Backward<Cell, T, Tiles<1>>(dev, layer, from, to).run();
  }
  if constexpr (std::is_same_v<T, float>) {
    if (layer.high) return Backward<Cell, T, Tiles<2>>(dev, layer, from, to).run();
  }
#elif NATIVEOPS_LEVEL >= 2
  if constexpr (std::is_same_v<T, bf16>) {
    if (simd::has_pairs()) return Backward<Cell, T, Pairs>(dev, layer, from, to).run();
  }
#endif
  Backward<Cell, T>(dev, layer, from, to).run();
}

}  // namespace nativeops::tuned
