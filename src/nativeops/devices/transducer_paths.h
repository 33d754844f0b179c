// SPDX-License-Identifier: Apache-2.0
// The transducer's loss on every device: the definition. All nodes of one step are computed at
// once. Logarithms of sums over paths are in double: in float a lattice of thousands of steps would
// lose all but a few digits.
#pragma once
#include <cstdint>

#include "nativeops/devices/softmax.h"
#include "nativeops/devices/transducer.h"

namespace nativeops::transducer {

// The planes of all cells within the lengths.
template <class T, class I>
void statistics(Device& dev, const Joint<T, I>& joint, const Out<Accum<T>, 4>& cells,
                bool normalises) {
  using A = Accum<T>;
  const int64_t frames = joint.logits.size(1), width = joint.logits.size(2);
  for_each_item(
      dev, joint.batch() * frames * width,
      [=] KERNEL(Team team, int64_t cell) {
        const Divided node = divide(cell, width), frame = divide(node.whole, frames);
        const int64_t u = node.rest, t = frame.rest, b = frame.whole;
        if (t >= joint.frames(b) || u > joint.labels(b)) {
          return team.each(0, int{kPlanes}, [=](int64_t plane) { cells(b, plane, t, u) = A(0); });
        }
        LogSum<A> of{0, 0};
        if (normalises && joint.classes() > 0)
          of = softmax_sums(team, at(at(at(joint.logits, b), t), u)).log_sum();
        if (team.rank() == 0) put_cell(joint, cells, b, t, u, of);
      },
      joint.classes());
}

// Two steps of logarithms, each with a -infinity at both ends.
struct Rolling {
  Out<double, 1> memory;
  HOST_DEVICE static int64_t size(int64_t labels) { return 2 * (labels + 3); }
  HOST_DEVICE double& operator()(int64_t s, int64_t u) const {
    return memory(s % 2 * (memory.size(0) / 2) + u + 1);
  }
  HOST_DEVICE void clear(int64_t i) const { memory(i) = lowest<double>(); }
};

// Both log-probabilities of node u of step s, which must have a frame.
template <class A>
struct Symbols {
  In<A, 4> cells;
  Steps steps;
  int64_t b;
  KERNEL double blank(int64_t s, int64_t u) const { return of(kBlank, s, u); }
  KERNEL double label(int64_t s, int64_t u) const { return of(kLabel, s, u); }
  // Kept within the array: where there is no such node, what is added to it is -infinity.
  KERNEL double of(Plane symbol, int64_t s, int64_t u) const {
    const int64_t t = steps.time(s, u), last = steps.frames - 1;
    const int64_t row = t < 0 ? 0 : t > last ? last : t;
    return log_prob(cells, symbol, b, row, u < 0 ? 0 : u);
  }
};

// α of step s from step s - 1:
// α[t, u] = log(exp(α[t - 1, u] + blank[t - 1, u]) + exp(α[t', u - 1] + label[t', u - 1])),
// t' = t, or t - 1 where a label needs a frame.
template <class A>
KERNEL void advance(Team team, const Symbols<A>& symbols, const Rolling& alpha, int64_t s) {
  const int64_t low = symbols.steps.low(s), before = s - 1;
  team.each(low, symbols.steps.high(s) + 1, [=](int64_t u) {
    alpha(s, u) = logaddexp(alpha(before, u) + symbols.blank(before, u),
                            alpha(before, u - 1) + symbols.label(before, u - 1));
  });
  if (team.rank() == 0) alpha(s, low - 1) = lowest<double>();  // what stood there is two steps old
}

template <class A, class F>
KERNEL void walk(Team team, const Symbols<A>& symbols, const Rolling& alpha, F&& visit) {
  const Rolling own = alpha;
  team.each(0, alpha.memory.size(0), [=](int64_t i) { own.clear(i); });
  team.sync();
  if (team.rank() == 0) alpha(0, 0) = 0;
  for (int64_t s = 1; s <= symbols.steps.count(); ++s) {
    team.sync();
    visit(s - 1);
    advance(team, symbols, alpha, s);
  }
  team.sync();
}

// costs = -α[T, U]
template <class T, class I>
void forward(Device& dev, const Joint<T, I>& joint, const In<Accum<T>, 4>& cells,
             const Out<T, 1>& costs) {
  using A = Accum<T>;
  const int64_t size = Rolling::size(joint.targets.size(1));
  for_each_item<double>(dev, joint.batch(), size,
                        [=] KERNEL(Team team, int64_t b, Out<double, 1> scratch) {
                          const Steps steps = steps_of(joint, b);
                          const Rolling alpha{scratch};
                          double total = lowest<double>();
                          if (steps.has_path()) {
                            walk(team, Symbols<A>{cells, steps, b}, alpha, [](int64_t) {});
                            total = alpha(steps.count(), steps.labels);
                          }
                          if (team.rank() == 0) costs(b) = T(static_cast<A>(0 - total));
                        });
}

// β of step s from step s + 1, and the probabilities to leave its nodes:
// β[t, u] = log(exp(blank[t, u] + β[t + 1, u]) + exp(label[t, u] + β[t', u + 1]))
// b = exp(α[t, u] + blank[t, u] + β[t + 1, u] - α[T, U]), l likewise
template <class A>
KERNEL void retreat(Team team, const Symbols<A>& symbols, const Rolling& beta,
                    const Out<double, 2>& alphas, double total, const Out<A, 4>& leaving,
                    int64_t s) {
  const int64_t b = symbols.b;
  const bool none = total == lowest<double>();
  const Steps steps = symbols.steps;
  team.each(steps.low(s), steps.high(s) + 1, [=](int64_t u) {
    const int64_t t = steps.time(s, u);
    const double stay = symbols.blank(s, u) + beta(s + 1, u);
    const double move = symbols.label(s, u) + beta(s + 1, u + 1);
    const double before = alphas(t, u) - total;
    leaving(b, 0, t, u) = none ? A(0) : exp(static_cast<A>(before + stay));
    leaving(b, 1, t, u) = none ? A(0) : exp(static_cast<A>(before + move));
    beta(s, u) = logaddexp(stay, move);
  });
}

// Both probabilities to leave, of all cells that a path can pass.
template <class T, class I>
void backward(Device& dev, const Joint<T, I>& joint, const In<Accum<T>, 4>& cells,
              const Out<Accum<T>, 4>& leaving) {
  using A = Accum<T>;
  const int64_t rolling = Rolling::size(joint.targets.size(1));
  const int64_t nodes = joint.logits.size(1) * joint.logits.size(2);
  for_each_item<double>(dev, joint.batch(), rolling + nodes,
                        [=] KERNEL(Team team, int64_t b, Out<double, 1> scratch) {
                          const Steps steps = steps_of(joint, b);
                          if (!steps.has_path() || steps.count() == 0) return;
                          const Symbols<A> symbols{cells, steps, b};
                          const Rolling sums{View<double, 1>{scratch.data, {rolling}, {1}}};
                          const int64_t width = steps.labels + 1;
                          const View<double, 2> alphas =
                              dense(scratch.data + rolling, steps.frames, width);
                          walk(team, symbols, sums, [=](int64_t s) {
                            team.each(steps.low(s), steps.high(s) + 1,
                                      [=](int64_t u) { alphas(steps.time(s, u), u) = sums(s, u); });
                          });
                          const double total = sums(steps.count(), steps.labels);
                          team.sync();
                          team.each(0, rolling, [=](int64_t i) { sums.clear(i); });
                          team.sync();
                          if (team.rank() == 0) sums(steps.count(), steps.labels) = 0;
                          for (int64_t s = steps.count() - 1; s >= 0; --s) {
                            team.sync();
                            retreat(team, symbols, sums, alphas, total, leaving, s);
                          }
                        });
}

// y·(b + l) - [k = blank]·b - [k = label]·l, bounded, times what flows back
template <class T, class I>
void gradient(Device& dev, const Joint<T, I>& joint, const In<Accum<T>, 4>& cells,
              const Out<Accum<T>, 4>& leaving, const Flow<T>& flow) {
  using A = Accum<T>;
  const int64_t frames = joint.logits.size(1), width = joint.logits.size(2);
  if (joint.classes() == 0) return;
  for_each_item(
      dev, joint.batch() * frames * width,
      [=] KERNEL(Team team, int64_t cell) {
        const Divided node = divide(cell, width), frame = divide(node.whole, frames);
        const int64_t u = node.rest, t = frame.rest, b = frame.whole;
        const auto row = at(at(at(joint.logits, b), t), u);
        const auto d_row = at(at(at(flow.d_logits, b), t), u);
        const bool passes = steps_of(joint, b).passes(t, u);
        const A by_blank = passes ? leaving(b, 0, t, u) : A(0);
        const A by_label = passes ? leaving(b, 1, t, u) : A(0);
        if (by_blank + by_label == 0) {
          team.each(0, row.size(0), [=](int64_t k) { d_row(k) = T(A(0)); });
          return;
        }
        const A shift = cells(b, int{kShift}, t, u), d_cost = A(flow.d_costs(b));
        const A passing = by_blank + by_label, log_sum = cells(b, int{kLogSum}, t, u);
        const A scale = flow.normalises ? passing * exp(-log_sum) : A(0);
        const int64_t blank = joint.blank(), label = u < joint.labels(b) ? joint.label(b, u) : -1;
        team.each(0, row.size(0), [=](int64_t k) {
          const A shown = flow.normalises ? scale * exp(A(row(k)) - shift) : A(0);
          const A taken = (k == blank ? by_blank : A(0)) + (k == label ? by_label : A(0));
          d_row(k) = T(flow.bounded(shown - taken) * d_cost);
        });
      },
      joint.classes());
}

}  // namespace nativeops::transducer
