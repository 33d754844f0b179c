// SPDX-License-Identifier: Apache-2.0
// The gradient of the recurrent layer with many threads: one kernel for the chain rule of all
// steps, from the last to the first, then sums over all frames as large products.
#pragma once
#include <cstdint>

#include "nativeops/devices/blocks/recurrent.h"
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops::tuned {

// The first of the gates' gradients that the state before was multiplied for; the others follow it.
template <class Cell>
constexpr int first_state_part() {
  for (int g = 0; g < Cell::kStateGates; ++g) {
    if (Cell::kStatePart[g] != Cell::kStatePart[0] + g) return -1;
  }
  return Cell::kStatePart[0];
}

template <class Cell, class T, int RowsPerLane, int ItemsPerLane>
struct BackwardSteps {
  using A = Accum<T>;
  static constexpr int kStateGates = Cell::kStateGates, kParts = Cell::kParts;
  using Product = StepProduct<T, RowsPerLane, ItemsPerLane>;
  static constexpr int kFirst = first_state_part<Cell>();
  static_assert(kFirst >= 0, "their gradients lie one after the other");

  Layer<T> layer;
  Arrived<T> from;
  Spread spread;
  Out<A, 3> parts, h_before;  // of recurrence::Trace
  Out<A, 2> d_h, d_c;
  unsigned* met;  // for each block of sequences

  // What a unit's chain rule reads: asked for before it is needed.
  struct Known {
    A kept[Cell::kKept + 1], d_y, out, state, cell, cell_before;
  };

  KERNEL void operator()() const {
    const int64_t units = layer.units(), batch = layer.batch(), depth = kStateGates * units;
    const int64_t u0 = blockIdx.x % spread.unit_blocks * spread.units;
    const int64_t group = blockIdx.x / spread.unit_blocks, b0 = group * spread.items;
    const int own = static_cast<int>(min2(spread.units, units - u0));
    const int64_t b_end = min2(batch, b0 + spread.items);
    const Product product(shared_scratch(), own, depth, spread.piece);
    product.load_weights(true, [=](int64_t row, int64_t k) { return layer.w_hh(k, u0 + row); });
    const int u = static_cast<int>(threadIdx.x) % own, place = static_cast<int>(threadIdx.x) / own;
    const int64_t j = u0 + u, last = layer.steps() - 1;
    // In step -1 nothing is left but what arrives at the first state.
    for (int64_t s = last; s >= -1; --s) {
      for (int64_t b1 = b0; b1 < b_end; b1 += Product::kItems) {
        const int count = static_cast<int>(min2<int64_t>(Product::kItems, b_end - b1));
        const int64_t b = b1 + place;
        const bool mine = place < count, inside = mine && s >= 0 && s < layer.length(b);
        Known known;
        if (inside) known = read(s, b, j);
        A arriving = mine ? d_h(b, j) : A(0);
        if (b1 == b0 && s < last) {
          await_arrivals(met + group, static_cast<unsigned>((last - s) * spread.unit_blocks));
        } else {
          sync();  // the sums of the pass before have been read
        }
        if (s < last) {
          product.run(count, is_even(), [=](int item) { return row(s + 1, b1 + item); });
          if (mine && !layer.begins_anew(s + 1, b)) arriving += product.sums(u, place);
        }
        if (inside) arriving = retreat(known, arriving, layer.time(s, b), b, j);
        if (mine && s >= 0 && !inside) rest(layer.time(s, b), b, j);
        if (mine) d_h(b, j) = arriving;
      }
      if (s >= 0) arrive(met + group);
    }
  }

  // The gradients of the gates of a step, as they are multiplied with the weights.
  KERNEL const A* row(int64_t s, int64_t b) const {
    return &parts(layer.time(s, b), b, kFirst * layer.units());
  }
  KERNEL bool is_even() const {
    return parts.stride(1) % 4 == 0 && kFirst * layer.units() % 4 == 0;
  }

  KERNEL Known read(int64_t s, int64_t b, int64_t j) const {
    const int64_t t = layer.time(s, b);
    Known known{};
    recurrence::load_kept<Cell>(from, parts, t, b, j, layer.units(), known.kept);
    known.d_y = A(from.d_y(t, b, j));
    known.out = A(from.y(t, b, j));
    if (Cell::kReadsState) known.state = h_before(t, b, j);
    if (Cell::kHasCell) {
      known.cell = A(from.cells(t, b, j));
      known.cell_before = recurrence::cell_before(layer, from, s, b, j);
    }
    return known;
  }

  // Returns what passes by the gates to the state before.
  KERNEL A retreat(const Known& known, A arriving, int64_t t, int64_t b, int64_t j) const {
    const int64_t units = layer.units();
    A part[kParts], d_cell = d_c(b, j);
    const A past =
        Cell::backward(known.kept, known.out, known.state, known.cell, known.cell_before,
                       arriving + known.d_y, d_cell, part, OwnWeights<T>{layer.own, j, units});
    d_c(b, j) = d_cell;
    for (int p = 0; p < kParts; ++p) parts(t, b, p * units + j) = part[p];
    return past;
  }

  KERNEL void rest(int64_t t, int64_t b, int64_t j) const {
    for (int p = 0; p < kParts; ++p) parts(t, b, p * layer.units() + j) = A(0);
  }
};

template <class Steps, class T>
Spread backward_spread(Device& dev, const Layer<T>& layer) {
  return spread<typename Steps::Product>(dev, layer.units(), 1, Steps::kStateGates * layer.units(),
                                         layer.batch());
}

template <class Steps, class Cell, class T>
void run_backward(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                  const LayerGrads<T>& to, const Spread& found) {
  using namespace recurrence;
  const Trace<Cell, T> trace(dev, layer);
  auto counters = dev.template workspace<unsigned>(found.item_blocks);
  const Out<unsigned, 1> met = dense(counters.data(), found.item_blocks);
  for_each(dev, met, [=] KERNEL(int64_t i) { met(i) = 0; });
  begin_back(dev, layer, from, trace);
  if (Cell::kKept > 0 && !from.gates) recompute(dev, layer, from, trace);
  launch_together(
      dev, static_cast<unsigned>(found.unit_blocks * found.item_blocks), kTogetherThreads,
      Steps{layer, from, found, trace.parts, trace.h_before, trace.d_h, trace.d_c, met.data},
      found.scratch_bytes);
  write_first(dev, to, trace);
  sum_up(dev, layer, from, to, trace);
}

template <class Cell, class T>
void recurrent_layer_grad(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                          const LayerGrads<T>& to) {
  if constexpr (kTogether<Cell, T>) {
    recurrence::check_lengths(layer);
    constexpr int kMore = Cell::kStateGates == 1 ? 8 : 4;  // a unit of more gates has longer rows
    const bool done =
        run_if_it_fits<BackwardSteps<Cell, T, 2, 2>, BackwardSteps<Cell, T, 2, 5>,
                       BackwardSteps<Cell, T, kMore, 2>, BackwardSteps<Cell, T, kMore, 5>>(
            layer, [&](auto steps) { return backward_spread<decltype(steps)>(dev, layer); },
            [&](auto steps, const Spread& found) {
              run_backward<decltype(steps), Cell>(dev, layer, from, to, found);
            });
    if (done) return;
  }
  nativeops::recurrent_layer_grad<Cell, T>(dev, layer, from, to);
}

}  // namespace nativeops::tuned
