// SPDX-License-Identifier: Apache-2.0
// The recurrent layer with many threads, generic over its cell: the products with the inputs of
// many steps at once, then one kernel for all these steps. A block has some units and some
// sequences; see together.h. Persistent kernels: Diamos et al. 2016, "Persistent RNNs".
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/blocks/halves.h"
#include "nativeops/devices/blocks/tensor.h"
#include "nativeops/devices/recurrent.h"

namespace nativeops::tuned {

// Bytes of products with inputs that are made ahead.
constexpr int64_t kAhead = int64_t{128} << 20;

// Which layers run in one kernel: float64 has twice the weights to hold and is for checks. Layers
// that are too large run step by step as the portable kernel does.
template <class Cell, class T>
constexpr bool kTogether = !Cell::kSecond && std::is_same_v<Accum<T>, float>;

// Kinds of steps that a layer may take.
template <class...>
struct OneOf {};

template <class Cell, class T, class Product_>
struct ForwardSteps {
  using A = Accum<T>;
  using Product = Product_;
  static constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;

  Layer<T> layer;
  States<T> to;
  Spread spread;
  A* from_x;  // products with the inputs of steps from `first` on: step b gates·h; or none
  Exchange<Product> states;
  A *held, *cells;  // the states of the step before as they were computed: b h
  unsigned* met;    // for each block of sequences
  int64_t first, end;

  static Spread find_spread(Device& dev, const Layer<T>& layer) {
    return tuned::spread<Product>(dev, layer.units(), kStateGates, layer.units(), layer.batch());
  }

  KERNEL void operator()() const {
    const int64_t units = layer.units(), batch = layer.batch();
    const int64_t u0 = blockIdx.x % spread.unit_blocks * spread.units;
    const int64_t group = blockIdx.x / spread.unit_blocks, b0 = group * spread.items;
    const int own = static_cast<int>(min2(spread.units, units - u0));
    const int64_t b_end = min2(batch, b0 + spread.items);
    const Product product(shared_scratch(), own * kStateGates, units, spread.piece);
    product.load_weights(false, [=](int64_t row, int64_t k) {
      const Divided gate = divide(row, own);
      return layer.w_hh(gate.whole * units + u0 + gate.rest, k);
    });
    // One unit for each thread, in one of the sequences of each pass.
    const int u = static_cast<int>(threadIdx.x) % own, place = static_cast<int>(threadIdx.x) / own;
    const int64_t j = u0 + u;
    A b_in[kGates], b_state[kStateGates];
    for (int g = 0; g < kGates; ++g) b_in[g] = recurrence::value_or_zero(layer.b_ih, g * units + j);
    for (int g = 0; g < kStateGates; ++g) {
      b_state[g] = recurrence::value_or_zero(layer.b_hh, g * units + j);
    }
    for (int64_t s = first; s < end; ++s) {
      for (int64_t b1 = b0; b1 < b_end; b1 += Product::kItems) {
        const int count = static_cast<int>(min2<int64_t>(Product::kItems, b_end - b1));
        const int64_t b = b1 + place;
        const bool mine = place < count, inside = mine && s < layer.length(b);
        A in[kGates] = {}, state = A(0), cell = A(0);
        for (int g = 0; inside && g < kGates; ++g) in[g] = given(s, b, g * units + j);
        if (mine) state = held[b * units + j];
        if (mine && Cell::kHasCell) cell = cells[b * units + j];
        if (b1 == b0 && s > first) {
          await_arrivals(met + group, static_cast<unsigned>((s - first) * spread.unit_blocks));
        } else {
          sync();  // the sums of the pass before have been read
        }
        product.run(count, [=](int item) { return states.vector(s, b1 + item); });
        A kept[Cell::kKept + 1] = {}, out = state;
        if (inside) {
          A from_h[kStateGates];
          for (int g = 0; g < kStateGates; ++g) {
            from_h[g] = product.sums(g * own + u, place) + b_state[g];
          }
          // Not before: nobody waits for numbers from memory before he meets the others.
          for (int g = 0; g < kGates; ++g) in[g] += b_in[g];
          out = Cell::forward(in, from_h, state, cell, kept, OwnWeights<T>{layer.own, j, units});
        }
        const A next = mine && layer.begins_anew(s + 1, b) ? A(0) : out;
        if (mine) states.put(s + 1, b, j, next);
        // The others wait for the states alone.
        if (b1 + Product::kItems >= b_end && s + 1 < end) arrive(met + group);
        if (!mine) continue;
        held[b * units + j] = next;
        if (Cell::kHasCell) cells[b * units + j] = cell;
        write(layer.time(s, b), b, j, inside, out, cell, kept);
        if (s + 1 < layer.steps()) continue;
        to.h_n(b, j) = T(out);
        if (Cell::kHasCell) to.c_n(b, j) = T(cell);
      }
    }
  }

  // What the inputs of a step come to, column k.
  KERNEL A given(int64_t s, int64_t b, int64_t k) const {
    const int64_t row = (s - first) * layer.batch() + b;
    const A product = from_x ? from_x[row * kGates * layer.units() + k] : A(0);
    return layer.sums ? product + A(layer.sums(layer.time(s, b), b, k)) : product;
  }

  // The results of a frame; zeros beyond the end of a sequence.
  KERNEL void write(int64_t t, int64_t b, int64_t j, bool inside, A out, A cell,
                    const A* kept) const {
    const int64_t units = layer.units();
    to.y(t, b, j) = T(inside ? out : A(0));
    for (int q = 0; to.gates && q < Cell::kKept; ++q) to.gates(t, b, q * units + j) = T(kept[q]);
    if (Cell::kHasCell && to.cells) to.cells(t, b, j) = T(inside ? cell : A(0));
  }
};

// All steps, `ahead` at a time.
template <class Steps, class Cell, class T>
void run_forward(Device& dev, const Layer<T>& layer, const States<T>& to, const Spread& found) {
  using A = Accum<T>;
  const int64_t units = layer.units(), batch = layer.batch(), steps = layer.steps();
  const int64_t row = Cell::kGates * units;
  using Vectors = Exchange<typename Steps::Product>;
  using Number = typename Vectors::Number;
  const int64_t bytes = batch * (row * int64_t{sizeof(A)} + layer.inputs() * int64_t{sizeof(T)});
  const bool multiplies = layer.inputs() > 0;
  const int64_t ahead = multiplies ? min2(steps, max2<int64_t>(1, kAhead / bytes)) : steps;
  auto given = dev.template workspace<T>(ahead * batch * layer.inputs());
  auto products = dev.template workspace<A>(multiplies ? ahead * batch * row : 0);
  auto vectors = dev.template workspace<Number>(Vectors::count(batch, units));
  auto memory = dev.template workspace<A>(2 * batch * units);
  auto counters = dev.template workspace<unsigned>(found.item_blocks);
  const Vectors states{vectors.data(), batch, Steps::Product::padded(units)};
  const Out<A, 2> held = dense(memory.data(), batch, units);
  const Out<A, 2> cells = dense(memory.data() + held.count(), batch, units);
  const Out<unsigned, 1> met = dense(counters.data(), found.item_blocks);
  for_each(dev, dense(vectors.data(), batch, states.length), [=] KERNEL(int64_t b, int64_t j) {
    const bool has_state = j < units && !layer.begins_anew(0, b);
    const A state = has_state ? recurrence::value_or_zero(layer.h_0, b, j) : A(0);
    states.put(0, b, j, state);
    states.put(1, b, j, A(0));
    if (j >= units) return;
    held(b, j) = state;
    cells(b, j) = Cell::kHasCell ? recurrence::value_or_zero(layer.c_0, b, j) : A(0);
  });
  for (int64_t first = 0; first < steps; first += ahead) {
    const int64_t n = min2(ahead, steps - first);
    // The inputs in the order of steps; what lies beyond an end may be anything.
    const Out<T, 3> x = dense(given.data(), n, batch, layer.inputs());
    for_each(dev, x, [=] KERNEL(int64_t s, int64_t b, int64_t i) {
      const bool inside = first + s < layer.length(b);
      x(s, b, i) = inside ? layer.x(layer.time(first + s, b), b, i) : T(A(0));
    });
    if (multiplies) {
      with_gemm(layer, [&](auto multiply) {
        multiply(dev, In<T, 2>(dense(given.data(), n * batch, layer.inputs())),
                 transpose(layer.w_ih), dense(products.data(), n * batch, row));
      });
    }
    for_each(dev, met, [=] KERNEL(int64_t i) { met(i) = 0; });
    launch_together(dev, static_cast<unsigned>(found.unit_blocks * found.item_blocks),
                    kTogetherThreads,
                    Steps{layer, to, found, multiplies ? products.data() : nullptr, states,
                          held.data, cells.data, met.data, first, first + n},
                    found.scratch_bytes);
  }
}

// run(kind of steps, spread) with the one of these that has least to do, if the weights fit: few
// and many sequences, and few and many units of a block, have kernels of their own.
template <class... Kinds, class T, class F>
bool run_best(OneOf<Kinds...>, Device& dev, const Layer<T>& layer, F run) {
  const Spread spreads[] = {Kinds::find_spread(dev, layer)...};
  int best = -1, place = 0;
  for (const Spread& each : spreads) {
    if (each && (best < 0 || each.work < spreads[best].work)) best = place;
    ++place;
  }
  place = 0;
  ((place++ == best ? run(Kinds(), spreads[best]) : void()), ...);
  return best >= 0;
}
// In float, or by matrix units where numbers have two bytes or may be sums of such. Whether there
// are steps, and weights that fit.
template <class InFloat, class ByUnits, class T, class F>
bool run_if_it_fits(Device& dev, const Layer<T>& layer, F run) {
  if (layer.steps() == 0 || layer.batch() == 0 || layer.units() == 0) return false;
  if constexpr (std::is_same_v<T, float>) {
    return (layer.high && run_best(ByUnits(), dev, layer, run)) ||
           run_best(InFloat(), dev, layer, run);
  } else {
    return run_best(ByUnits(), dev, layer, run);
  }
}
// Float as two bf16.
template <class T, int RowTiles, int ItemTiles>
using TensorProductOf =
    std::conditional_t<std::is_same_v<T, float>, TensorProduct<bf16, 2, RowTiles, ItemTiles>,
                       TensorProduct<T, 1, RowTiles, ItemTiles>>;

template <class Cell, class T>
void recurrent_layer(Device& dev, const Layer<T>& layer, const States<T>& to) {
  if constexpr (kTogether<Cell, T>) {
    recurrence::check_lengths(layer);
    using InFloat =
        OneOf<ForwardSteps<Cell, T, StepProduct<8, 2>>, ForwardSteps<Cell, T, StepProduct<8, 5>>>;
    using ByUnits = OneOf<ForwardSteps<Cell, T, TensorProductOf<T, 2, 1>>,
                          ForwardSteps<Cell, T, TensorProductOf<T, 2, 4>>,
                          ForwardSteps<Cell, T, TensorProductOf<T, 4, 2>>>;
    const auto run = [&](auto steps, const Spread& found) {
      run_forward<decltype(steps), Cell>(dev, layer, to, found);
    };
    if (run_if_it_fits<InFloat, ByUnits>(dev, layer, run)) return;
  }
  nativeops::recurrent_layer<Cell, T>(dev, layer, to);
}

}  // namespace nativeops::tuned
