// SPDX-License-Identifier: Apache-2.0
// The gradient of the recurrent layer on every device, generic over its cell: the definition.
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/matrix.h"
#include "nativeops/devices/recurrent_trace.h"

namespace nativeops {

namespace recurrence {

// What the forward pass kept of a step, or what was computed again.
template <class Cell, class T, class P, class K>
HOST_DEVICE void load_kept(const Arrived<T>& from, const Out<P, 3>& parts, int64_t t, int64_t b,
                           int64_t j, int64_t units, K* kept) {
  for (int q = 0; q < Cell::kKept; ++q) {
    const int64_t k = q * units + j;
    kept[q] = from.gates ? K(from.gates(t, b, k)) : K(parts(t, b, k));
  }
}

// The chain rule of `advance_second`: to its sum, and what passes by the gates to the state before.
template <class Cell, class T>
void retreat_second(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                    const Trace<Cell, T>& trace, Out<Accum<T>, 2> gathered, int64_t s) {
  using A = Accum<T>;
  const auto d_h = trace.d_h;
  const auto parts = trace.parts, h_before = trace.h_before;
  const int64_t units = layer.units(), sum = Cell::kParts * units;
  for_each(dev, d_h, [=] KERNEL(int64_t b, int64_t j) {
    const int64_t t = layer.time(s, b);
    gathered(b, sum + j) = A(0);
    if (s >= layer.length(b)) {
      parts(t, b, sum + j) = A(0);
      return;
    }
    A kept[Cell::kKept + 1], part[Cell::kParts], d_sum;
    if (Cell::kPartsEarly > 0) load_kept<Cell>(from, parts, t, b, j, units, kept);
    const A d_out = d_h(b, j) + A(from.d_y(t, b, j));
    d_h(b, j) = Cell::early(kept, h_before(t, b, j), d_out, d_sum, part);
    parts(t, b, sum + j) = gathered(b, sum + j) = d_sum;
    for (int p = Cell::kParts - Cell::kPartsEarly; p < Cell::kParts; ++p) {
      parts(t, b, p * units + j) = part[p];
    }
  });
  gemm(dev, columns(gathered, sum, layer.width()), layer.w_second, trace.d_middle);
}

// The chain rule of `advance`. d_h is on entry what arrives at the state after step s from later
// steps, in the end what passes by the gates to the state before it; their own follows as a
// product.
template <class Cell, class T>
void retreat(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
             const Trace<Cell, T>& trace, int64_t s) {
  using A = Accum<T>;
  const auto d_h = trace.d_h, d_c = trace.d_c, d_middle = trace.d_middle;
  const auto parts = trace.parts, h_before = trace.h_before, middle = trace.middle;
  const int64_t units = layer.units();
  for_each(
      dev, d_c,
      [=] KERNEL(int64_t b, int64_t j) {
        const int64_t t = layer.time(s, b);
        if (s >= layer.length(b)) {
          for (int p = 0; p < Cell::kParts; ++p) parts(t, b, p * units + j) = A(0);
          if (Cell::kSecond) middle(t, b, j) = A(0);
          return;
        }
        A kept[Cell::kKept + 1], part[Cell::kParts], d_cell = d_c(b, j), cell = A(0), before = A(0);
        load_kept<Cell>(from, parts, t, b, j, units, kept);
        if (Cell::kHasCell) {
          cell = A(from.cells(t, b, j));
          before = cell_before(layer, from, s, b, j);
        }
        const A state = Cell::kReadsState ? h_before(t, b, j) : A(0);
        A d_out = d_middle(b, j), out = A(0);
        if (!Cell::kSecond) {
          out = A(from.y(t, b, j));
          d_out = d_h(b, j) + A(from.d_y(t, b, j));
        }
        const A past = Cell::backward(kept, out, state, cell, before, d_out, d_cell, part,
                                      OwnWeights<T>{layer.own, j, units});
        if (!Cell::kSecond) d_h(b, j) = past;
        if (Cell::kSecond && Cell::kReadsState) d_h(b, j) += past;
        if (Cell::kSecond) middle(t, b, j) = Cell::middle(kept, state, cell);
        d_c(b, j) = d_cell;
        for (int p = 0; p < Cell::kParts - Cell::kPartsEarly; ++p) {
          parts(t, b, p * units + j) = part[p];
        }
      },
      100);
}

// f(gate, part, count): `count` gates from `gate` on have their gradients from `part` on, so that
// they are one product.
template <class F>
void for_runs(const int* part, int gates, F f) {
  for (int g = 0, count; g < gates; g += count) {
    for (count = 1; g + count < gates && part[g + count] == part[g] + count;) ++count;
    f(g, part[g], count);
  }
}

// out = before·out + Σ over the gates of their gradients times rows of their weights
template <class T, class P, class To, class Multiply = Gemm>
void add_products(Device& dev, Out<To, 2> out, In<P, 2> parts, In<T, 2> weight, const int* part,
                  int gates, int64_t units, double before, Multiply multiply = {}) {
  for_runs(part, gates, [&](int gate, int first, int count) {
    multiply(dev, columns(parts, first * units, count * units),
             rows(weight, gate * units, count * units), out, before);
    before = 1;
  });
}

// The step whose frames are all those of a time only lies at that time where nothing is reversed,
// so a step's gradients are gathered.
template <class Cell, class T>
void retreat_state(Device& dev, const Layer<T>& layer, const Trace<Cell, T>& trace,
                   Out<Accum<T>, 2> gathered, int64_t s) {
  using A = Accum<T>;
  const auto parts = trace.parts;
  for_each(dev, gathered, [=] KERNEL(int64_t b, int64_t k) {
    const bool has_state = s < layer.length(b) && !layer.begins_anew(s, b);
    gathered(b, k) = has_state ? parts(layer.time(s, b), b, k) : A(0);
  });
  add_products<T, A>(dev, trace.d_h, In<A, 2>(gathered), layer.w_hh, Cell::kStatePart,
                     Cell::kStateGates, layer.units(), 1);
}

// The gradient of a weight matrix, and that of a bias.
template <class T, class P, class Multiply>
void weight_grad(Device& dev, Out<T, 2> to, In<P, 2> parts, In<P, 2> right, const int* part,
                 int gates, Multiply multiply) {
  if (!to) return;
  const int64_t units = to.size(0) / gates;
  for_runs(part, gates, [&](int gate, int first, int count) {
    multiply(dev, transpose(columns(parts, first * units, count * units)), right,
             rows(to, gate * units, count * units));
  });
}
template <class T, class P>
void bias_grad(Device& dev, Out<T, 1> to, In<P, 2> parts, const int* part, int gates) {
  const int64_t units = to ? to.size(0) / gates : 0;
  for (int g = 0; to && g < gates; ++g) {
    const In<P, 2> own = columns(parts, part[g] * units, units);
    const Out<T, 1> gate{to.data + g * units * to.stride(0), {units}, {to.stride(0)}};
    sum_rows(dev, parts.size(0), gate,
             [=] KERNEL(int64_t i, int64_t j) { return Accum<T>(own(i, j)); });
  }
}

// The gradients of the weights of single units.
template <class Cell, class T, class P>
void own_grad(Device& dev, const Layer<T>& layer, const Arrived<T>& from, Out<T, 1> to,
              const Trace<Cell, T, P>& trace) {
  using A = Accum<T>;
  const int64_t units = layer.units(), steps = layer.steps(), batch = layer.batch();
  const auto parts = trace.parts;
  const Out<T, 1> first{to.data, {units}, {to.stride(0)}};
  for_each(
      dev, first,
      [=] KERNEL(int64_t j) {
        A sum[Cell::kOwn + 1] = {}, part[Cell::kParts];
        for (int64_t i = 0; i < steps * batch; ++i) {
          const int64_t s = i / batch, b = i % batch, t = layer.time(s, b);
          if (s >= layer.length(b)) continue;
          for (int p = 0; p < Cell::kParts; ++p) part[p] = A(parts(t, b, p * units + j));
          Cell::add_own(part, A(from.cells(t, b, j)), cell_before(layer, from, s, b, j), sum);
        }
        for (int q = 0; q < Cell::kOwn; ++q) to(q * units + j) = T(sum[q]);
      },
      steps * batch);
}

// The gradients of the sums that were given in place of products: columns of those of the gates.
template <class T, class P>
void sums_grad(Device& dev, Out<T, 3> to, In<P, 3> parts, const int* part, int gates) {
  const int64_t units = to.size(2) / gates;
  for (int g = 0; g < gates; ++g) {
    const int64_t from = part[g] * units;
    const Out<T, 3> own{to.data + g * units * to.stride(2),
                        {to.size(0), to.size(1), units},
                        {to.stride(0), to.stride(1), to.stride(2)}};
    for_each(dev, own, [=] KERNEL(int64_t t, int64_t b, int64_t j) {
      own(t, b, j) = T(Accum<T>(parts(t, b, from + j)));
    });
  }
}

// All gradients that are sums over all frames, and that of the inputs.
template <class Cell, class T, class P, class Multiply = Gemm>
void sum_up(Device& dev, const Layer<T>& layer, const Arrived<T>& from, const LayerGrads<T>& to,
            const Trace<Cell, T, P>& trace, Multiply multiply = {}) {
  using A = Accum<T>;
  const In<P, 2> parts = frames(In<P, 3>(trace.parts));
  weight_grad(dev, to.w_ih, parts, frames(In<P, 3>(trace.x)), Cell::kInputPart, Cell::kGates,
              multiply);
  weight_grad(dev, to.w_hh, parts, frames(In<P, 3>(trace.h_before)), Cell::kStatePart,
              Cell::kStateGates, multiply);
  bias_grad(dev, to.b_ih, parts, Cell::kInputPart, Cell::kGates);
  bias_grad(dev, to.b_hh, parts, Cell::kStatePart, Cell::kStateGates);
  if constexpr (Cell::kSecond) {
    constexpr int kOnly[] = {0};
    const In<P, 2> sums = columns(parts, Cell::kParts * layer.units(), layer.width());
    weight_grad(dev, to.w_second, sums, frames(In<P, 3>(trace.middle)), kOnly, 1, multiply);
    bias_grad(dev, to.b_second, sums, kOnly, 1);
  }
  if constexpr (Cell::kOwn > 0) {
    if (to.own) own_grad(dev, layer, from, to.own, trace);
  }
  if (to.sums) sums_grad<T, P>(dev, to.sums, trace.parts, Cell::kInputPart, Cell::kGates);
  if (!to.x) return;
  auto more = dev.template workspace<A>(std::is_same_v<P, A> ? 0 : trace.x.count());
  Out<A, 3> sums = dense(more.data(), trace.x.size(0), trace.x.size(1), trace.x.size(2));
  if constexpr (std::is_same_v<P, A>) sums = trace.x;  // of which the weights have no more need
  add_products<T, P>(dev, frames(sums), parts, layer.w_ih, Cell::kInputPart, Cell::kGates,
                     layer.units(), 0, multiply);
  for_each(dev, to.x,
           [=] KERNEL(int64_t t, int64_t b, int64_t i) { to.x(t, b, i) = T(sums(t, b, i)); });
}

// The gradients of the states that a layer began with.
template <class Cell, class T, class P>
void write_first(Device& dev, const LayerGrads<T>& to, const Trace<Cell, T, P>& trace) {
  const auto d_h = trace.d_h, d_c = trace.d_c;
  if (to.h_0) {
    for_each(dev, d_h, [=] KERNEL(int64_t b, int64_t j) { to.h_0(b, j) = T(d_h(b, j)); });
  }
  if (Cell::kHasCell && to.c_0) {
    for_each(dev, d_c, [=] KERNEL(int64_t b, int64_t j) { to.c_0(b, j) = T(d_c(b, j)); });
  }
}

}  // namespace recurrence

// The chain rule of the lines above, from the last step to the first.
template <class Cell, class T>
void recurrent_layer_grad(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                          const LayerGrads<T>& to) {
  using namespace recurrence;
  using A = Accum<T>;
  check_lengths(layer);
  const Trace<Cell, T> trace(dev, layer);
  const int64_t row = trace.parts.size(2);
  auto memory = dev.template workspace<A>(layer.batch() * row);
  const Out<A, 2> gathered = dense(memory.data(), layer.batch(), row);
  begin_back(dev, layer, from, trace);
  if (Cell::kKept > 0 && !from.gates) recompute(dev, layer, from, trace);
  for (int64_t s = layer.steps() - 1; s >= 0; --s) {
    if constexpr (Cell::kSecond) retreat_second(dev, layer, from, trace, gathered, s);
    retreat(dev, layer, from, trace, s);
    retreat_state(dev, layer, trace, gathered, s);
  }
  write_first(dev, to, trace);
  sum_up(dev, layer, from, to, trace);
}

// What an op's kernel runs, here as it is defined; tuned::RecurrentEngine stands in its place.
struct RecurrentEngine {
  template <class Cell, class T>
  static void layer(Device& dev, const Layer<T>& layer, const States<T>& to) {
    recurrent_layer<Cell>(dev, layer, to);
  }
  template <class Cell, class T>
  static void layer_grad(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                         const LayerGrads<T>& to) {
    recurrent_layer_grad<Cell>(dev, layer, from, to);
  }
};

}  // namespace nativeops
