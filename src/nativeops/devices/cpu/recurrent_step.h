// SPDX-License-Identifier: Apache-2.0
// What follows the products in a step of a recurrent layer on the CPU: the cell's formulas, the
// states between two steps, and all that is written of a step.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/cpu/activations.h"
#include "nativeops/devices/cpu/recurrent_rows.h"
#include "nativeops/devices/cpu/sequences.h"
#include "nativeops/devices/recurrent.h"

namespace nativeops::tuned {

// Of: what states are multiplied as (recurrent.h).
template <class Cell, class T, class Of>
class StepFormulas {
  using A = Accum<T>;
  using V = simd::Vec<A>;
  static constexpr int n = simd::kLanes<A>, kGates = Cell::kGates;

 public:
  // A vector of units of a sequence, and its sums.
  struct Place {
    int64_t r, unit;
    A* from_input;
    const A* from_state;
  };

  StepFormulas(Device& dev, const Layer<T>& layer, const States<T>& to, const Sequences<T>& seq)
      : layer_(layer),
        to_(to),
        seq_(seq),
        hidden_(dev, 2 * seq.batch, layer.width()),
        cell_(dev, Cell::kHasCell ? seq.batch : 0, layer.units()),
        middle_(dev, Cell::kSecond ? seq.batch : 0, layer.units()),
        streams_(to.gates && to.gates.count() * static_cast<int64_t>(sizeof(T)) > kCaches) {}

  // The initial states; those of sequences without a step are the final ones.
  void start() {
    for (int64_t r = 0; r < seq_.batch; ++r) {
      const int64_t b = seq_.item(r);
      hidden_.fill(r, seq_.begins_anew(0, r) ? In<T, 2>() : layer_.h_0, b);
      if (Cell::kHasCell) cell_.fill(r, layer_.c_0, b);
      if (seq_.length(r) > 0) continue;
      for (int64_t j = 0; j < layer_.width(); ++j) to_.h_n(b, j) = T(hidden_.numbers(r)[j]);
      for (int64_t j = 0; Cell::kHasCell && j < layer_.units(); ++j) {
        to_.c_n(b, j) = T(cell_.numbers(r)[j]);
      }
    }
  }

  // What the weights of a step are multiplied with, and those of the second half.
  const A* state(int64_t step, int64_t r) const { return hidden_.words(row(step, r)); }
  const A* middle(int64_t r) const { return middle_.words(r); }

  // The cell's formula at one place, or at two side by side: it is a chain of operations that wait
  // for each other, and two chains take hardly longer than one. What it calls is inlined: with bf16
  // g++ would keep calls between them.
  template <class Some>
  [[gnu::flatten]] void apply(Some places, int64_t step, const Place* at) {
    using W = typename Some::template Of<A>;
    W x[kGates], h[Cell::kStateGates], kept[Cell::kKept > 0 ? Cell::kKept : 1], c{}, before{};
    for (int g = 0; g < kGates; ++g) {
      x[g] = places.template from<A>([&](int i) { return simd::load(at[i].from_input + g * n); });
    }
    for (int g = 0; g < Cell::kStateGates; ++g) {
      h[g] = places.template from<A>([&](int i) { return simd::load(at[i].from_state + g * n); });
    }
    if (Cell::kHasCell) {
      c = places.template from<A>(
          [&](int i) { return simd::load(cell_.numbers(at[i].r) + at[i].unit); });
    }
    if (Cell::kReadsState) {
      before = places.template from<A>(
          [&](int i) { return simd::load(hidden_.numbers(row(step, at[i].r)) + at[i].unit); });
    }
    const OwnVectors<T, Some> own{
        layer_.own, layer_.units(), {at[0].unit, Some::kCount > 1 ? at[1].unit : 0}};
    const W out = Cell::forward(x, h, before, c, kept, own);
    places.each([&](auto i) {
      const auto [r, unit, from_input, from_state] = at[i];
      const int64_t t = seq_.time(step, r), b = seq_.item(r), count = layer_.units() - unit;
      if constexpr (Cell::kSecond) {
        middle_.set(r, unit, places.of(out, i));
        for (int g = 0; Cell::kReadsState && g < kGates; ++g) {
          simd::store(from_input + g * n, places.of(x[g], i));
        }
      } else {
        finish(step, r, unit, places.of(out, i));
      }
      if (to_.gates) {
        V own_kept[Cell::kKept > 0 ? Cell::kKept : 1];
        for (int q = 0; q < Cell::kKept; ++q) own_kept[q] = places.of(kept[q], i);
        write_kept<0, Cell::kKept - Cell::kKeptLate>(t, b, unit, own_kept, count);
      }
      if constexpr (Cell::kHasCell) {
        const V cell = places.of(c, i);
        simd::store(cell_.numbers(r) + unit, cell);
        if (to_.cells) write(to_.cells, t, b, unit, cell, count);
        if (step + 1 == seq_.length(r)) store_along(to_.c_n, &to_.c_n(b, unit), cell, count);
      }
    });
  }

  // What a second product leads to; from_input: as `apply` has left it.
  void apply_second(int64_t step, int64_t r, int64_t unit, V sum, const A* from_input) {
    V x[kGates], kept[Cell::kKept], before = sum;
    if constexpr (Cell::kReadsState) {
      for (int g = 0; g < kGates; ++g) x[g] = simd::load(from_input + g * n);
      before = simd::load(hidden_.numbers(row(step, r)) + unit);
    }
    finish(step, r, unit, Cell::finish(x, sum, before, kept));
    write_kept<Cell::kKept - Cell::kKeptLate, Cell::kKept>(seq_.time(step, r), seq_.item(r), unit,
                                                           kept, layer_.units() - unit);
  }

  // Zeros for the sequences that are past their end, in all that steps write.
  void clear_beyond_ends(Device& dev) const {
    clear_beyond(dev, seq_, to_.y);
    clear_beyond(dev, seq_, to_.gates);
    if (Cell::kHasCell) clear_beyond(dev, seq_, to_.cells);
  }

  // To be called before other threads read what was written.
  void settle() const {
    if (streams_) simd::settle();
  }

 private:
  static constexpr int64_t kCaches = int64_t{16} << 20;  // bytes

  int64_t row(int64_t step, int64_t r) const { return step % 2 * seq_.batch + r; }

  // The state after a step.
  void finish(int64_t step, int64_t r, int64_t unit, V out) {
    hidden_.set(row(step + 1, r), unit, out);
    if (seq_.begins_anew(step + 1, r)) hidden_.set(row(step + 1, r), unit, simd::zero<A>());
    const int64_t b = seq_.item(r), count = layer_.width() - unit;
    write(to_.y, seq_.time(step, r), b, unit, out, count);
    if (step + 1 == seq_.length(r)) store_along(to_.h_n, &to_.h_n(b, unit), out, count);
  }
  template <int kFirst, int kEnd>
  void write_kept(int64_t t, int64_t b, int64_t unit, const V* kept, int64_t count) {
    if (kFirst == kEnd || !to_.gates) return;
    // A loop would keep these vectors in memory.
    simd::unroll<kEnd - kFirst>([&](auto i) __attribute__((always_inline)) {
      constexpr int q = kFirst + i;
      write(to_.gates, t, b, q * layer_.units() + unit, kept[q], count);
    });
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

  const Layer<T>& layer_;
  const States<T>& to_;
  const Sequences<T>& seq_;
  const Rows<T, Of> hidden_;
  const Rows<T, Numbers> cell_;
  const Rows<T, Of> middle_;
  const bool streams_;
};

}  // namespace nativeops::tuned
