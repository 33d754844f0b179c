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

template <class Cell, class T, class Product_>
struct BackwardSteps {
  using A = Accum<T>;
  using Product = Product_;
  static constexpr int kStateGates = Cell::kStateGates, kParts = Cell::kParts;
  static constexpr int kFirst = first_state_part<Cell>();
  static_assert(kFirst >= 0, "their gradients lie one after the other");

  Layer<T> layer;
  Arrived<T> from;
  Spread spread;
  Out<T, 3> parts, h_before;  // of recurrence::Trace
  Out<A, 2> d_h, d_c;
  Exchange<Product> gates;  // the gradients that are multiplied with the weights
  unsigned* met;            // for each block of sequences

  // What a unit's chain rule reads: asked for before it is needed, and as it lies in memory, since
  // nobody waits for it before he meets the others.
  struct Known {
    T kept[Cell::kKept + 1], d_y, out, state, cell, cell_before;
  };

  static Spread find_spread(Device& dev, const Layer<T>& layer) {
    return tuned::spread<Product>(dev, layer.units(), 1, kStateGates * layer.units(),
                                  layer.batch());
  }

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
        Known known{};
        if (inside) read(s, b, j, known);
        A arriving = mine ? d_h(b, j) : A(0);
        if (b1 == b0 && s < last) {
          await_arrivals(met + group, static_cast<unsigned>((last - s) * spread.unit_blocks));
        } else {
          sync();  // the sums of the pass before have been read
        }
        if (s < last) {
          product.run(count, [=](int item) { return gates.vector(s + 1, b1 + item); });
          if (mine && !layer.begins_anew(s + 1, b)) arriving += product.sums(u, place);
        }
        A part[kParts] = {};
        if (inside) arriving = retreat(known, arriving, b, j, part);
        for (int g = 0; mine && s >= 0 && g < kStateGates; ++g) {
          gates.put(s, b, g * units + j, part[kFirst + g]);
        }
        // The others wait for these alone.
        if (b1 + Product::kItems >= b_end && s >= 0) arrive(met + group);
        if (!mine) continue;
        for (int p = 0; s >= 0 && p < kParts; ++p) {
          parts(layer.time(s, b), b, p * units + j) = T(part[p]);
        }
        d_h(b, j) = arriving;
      }
    }
  }

  KERNEL void read(int64_t s, int64_t b, int64_t j, Known& known) const {
    const int64_t t = layer.time(s, b);
    recurrence::load_kept<Cell>(from, parts, t, b, j, layer.units(), known.kept);
    known.d_y = from.d_y(t, b, j);
    known.out = from.y(t, b, j);
    if (Cell::kReadsState) known.state = h_before(t, b, j);
    if (!Cell::kHasCell) return;
    known.cell = from.cells(t, b, j);
    known.cell_before = recurrence::cell_before<T, T>(layer, from, s, b, j);
  }

  // The gradients of a unit's gates; returns what passes by them to the state before.
  KERNEL A retreat(const Known& known, A arriving, int64_t b, int64_t j, A* part) const {
    A kept[Cell::kKept + 1], d_cell = d_c(b, j);
    for (int q = 0; q < Cell::kKept; ++q) kept[q] = A(known.kept[q]);
    const A past = Cell::backward(kept, A(known.out), A(known.state), A(known.cell),
                                  A(known.cell_before), arriving + A(known.d_y), d_cell, part,
                                  OwnWeights<T>{layer.own, j, layer.units()});
    d_c(b, j) = d_cell;
    return past;
  }
};

template <class Steps, class Cell, class T>
void run_backward(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                  const LayerGrads<T>& to, const Spread& found) {
  using namespace recurrence;
  // As numbers of the dtype, so that products of all frames are those of matrix units.
  const Trace<Cell, T, T> trace(dev, layer);
  using Vectors = Exchange<typename Steps::Product>;
  const int64_t depth = Cell::kStateGates * layer.units(), batch = layer.batch();
  auto vectors = dev.template workspace<typename Vectors::Number>(Vectors::count(batch, depth));
  const Vectors gates{vectors.data(), batch, Steps::Product::padded(depth)};
  for_each(dev, dense(vectors.data(), batch, gates.length), [=] KERNEL(int64_t b, int64_t k) {
    for (int turn = 0; turn < 2; ++turn) gates.put(turn, b, k, 0.0f);
  });
  auto counters = dev.template workspace<unsigned>(found.item_blocks);
  const Out<unsigned, 1> met = dense(counters.data(), found.item_blocks);
  for_each(dev, met, [=] KERNEL(int64_t i) { met(i) = 0; });
  begin_back(dev, layer, from, trace);
  with_gemm(layer, [&](auto multiply) {
    if (Cell::kKept > 0 && !from.gates) recompute(dev, layer, from, trace, multiply);
  });
  launch_together(
      dev, static_cast<unsigned>(found.unit_blocks * found.item_blocks), kTogetherThreads,
      Steps{layer, from, found, trace.parts, trace.h_before, trace.d_h, trace.d_c, gates, met.data},
      found.scratch_bytes);
  write_first(dev, to, trace);
  with_gemm(layer, [&](auto multiply) { sum_up(dev, layer, from, to, trace, multiply); });
}

template <class Cell, class T>
void recurrent_layer_grad(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                          const LayerGrads<T>& to) {
  if constexpr (kTogether<Cell, T>) {
    recurrence::check_lengths(layer);
    constexpr int kMore = Cell::kStateGates == 1 ? 8 : 4;  // a unit of more gates has longer rows
    using InFloat =
        OneOf<BackwardSteps<Cell, T, StepProduct<2, 2>>, BackwardSteps<Cell, T, StepProduct<2, 5>>,
              BackwardSteps<Cell, T, StepProduct<kMore, 2>>,
              BackwardSteps<Cell, T, StepProduct<kMore, 5>>>;
    using ByUnits = OneOf<BackwardSteps<Cell, T, TensorProductOf<T, 1, 1>>,
                          BackwardSteps<Cell, T, TensorProductOf<T, 1, 2>>,
                          BackwardSteps<Cell, T, TensorProductOf<T, 1, 4>>,
                          BackwardSteps<Cell, T, TensorProductOf<T, 2, 1>>>;
    const auto run = [&](auto steps, const Spread& found) {
      run_backward<decltype(steps), Cell>(dev, layer, from, to, found);
    };
    if (run_if_it_fits<InFloat, ByUnits>(dev, layer, run)) return;
  }
  nativeops::recurrent_layer_grad<Cell, T>(dev, layer, from, to);
}

}  // namespace nativeops::tuned
