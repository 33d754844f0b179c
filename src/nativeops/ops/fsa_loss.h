// SPDX-License-Identifier: Apache-2.0
// The full-sum loss over automata, and its gradient. Declared in fsa_loss.py.
#pragma once
#include "nativeops/devices/forward_backward.h"

namespace nativeops {

// norm[t,b] = log Σ_c e^logits[t,b,c]; 0 where all logits are -infinity, which then stay that.
template <class T>
void log_sums(Device& dev, In<T, 3> logits, const Places& places, Accum<T>* norm) {
  using A = Accum<T>;
  const int64_t batch = logits.size(1), classes = logits.size(2);
  for_each_item(dev, logits.size(0) * batch, [=] KERNEL(Team team, int64_t i) {
    const int64_t t = i / batch, b = i % batch;
    if (t >= places.frames(b)) return;
    const A most = team.max(0, classes, [=](int64_t c) { return A(logits(t, b, c)); });
    const A sum = team.sum(0, classes, [=](int64_t c) { return exp(A(logits(t, b, c)) - most); });
    if (team.rank() == 0) norm[i] = most == lowest<A>() ? A(0) : most + log(sum);
  });
}

// loss[b] = -log Σ over all paths of Π_t p[t, b, class] · e^-weight,  p = softmax(logits)
template <class T, class P = Passes<T>>
void fsa_loss(Device& dev, In<T, 3> logits, In<int32_t, 2> edges, In<T, 1> weights,
              In<int32_t, 2> start_end_states, In<int32_t, 1> lengths, In<int32_t, 2> end_states,
              In<T, 1> end_weights, Out<T, 1> out, bool normalized, bool zero_infinity) {
  using A = Accum<T>;
  const int64_t steps = logits.size(0), batch = logits.size(1);
  const Automata<T> automata{edges,      weights,     start_end_states,
                             end_states, end_weights, logits.size(2)};
  check_values("lengths", lengths, 0, steps, "the steps of `logits`");
  check_automata(automata, "logits");
  if (batch == 0) return;
  auto norm = dev.template workspace<A>(normalized ? 0 : steps * batch);
  const Places places = padded(logits, lengths);
  if (!normalized) log_sums(dev, logits, places, norm.data());
  const Memory<T> memory(dev, automata, steps);
  const Graph<A> all = memory.index.all();
  const int64_t* const begin = memory.index.begin();
  const History<A> history = memory.history();
  const Costs<T> costs{logits.data, places, normalized, norm.data()};
  for_each_item(dev, batch, [=] KERNEL(Team team, int64_t b) {
    const P passes{graph_of(all, begin, b), costs, history};
    const Scaled<A> sum = passes.total(passes, team, b);
    const bool sick = passes.sick(team);
    if (team.rank() > 0) return;
    const bool none = !sick && sum.m == 0;
    const A cost = sick ? not_a_number<A>() : static_cast<A>(long_cost_of(sum));
    out(b) = T(none && zero_infinity ? A(0) : cost);
  });
}

// d_logits[t,b,c] = d_out[b] · (p[t,b,c] - posterior of c in t), the first only of logits
// d_weights[e]    = d_out[b] · Σ_t posterior of e in t
// d_end_weights   = d_out[b] · posterior of the end state
template <class T>
struct LossGrad {
  using A = Accum<T>;
  In<T, 3> logits;
  Out<T, 3> d_logits;
  Out<T, 1> d_weights, d_end_weights;
  In<T, 1> d_out;
  Automata<T> automata;
  const A* norm;
  int64_t batch;

  KERNEL A own(int64_t t, int64_t b, int64_t c) const {
    return norm ? exp(A(logits(t, b, c)) - norm[t * batch + b]) : A(0);
  }
  static KERNEL A share(Scaled<A> part, Scaled<A> all) {
    return part.m / all.m * power_of<A>(min2<Exponent<A>>(max2(part.k, Scale<A>::none) - all.k, 0));
  }
  KERNEL void fill(Team team, int64_t t, int64_t b, A value) const {
    const Out<T, 1> row = at(at(d_logits, t), b);
    team.each(0, row.size(0), [=](int64_t c) { row(c) = T(value); });
  }
  KERNEL void operator()(Team team, int64_t t, int64_t b, const Graph<A>& g, Scaled<A> all) const {
    const Row<A> sums = g.row(kSum), gamma = g.row(kGamma), taken = g.row(kTaken);
    const int32_t* const label = g.list(kClasses);
    const A d = A(d_out(b));
    const LossGrad self = *this;
    if (d_logits) {
      const Out<T, 1> row = at(at(d_logits, t), b);
      team.each(0, row.size(0), [=](int64_t c) { row(c) = T(d * self.own(t, b, c)); });
      team.sync();
      team.each(0, g.slots(), [=](int64_t s) {
        row(label[s]) = T(d * (self.own(t, b, label[s]) - share(sums[s], all)));
      });
    }
    const int64_t arcs = d_weights ? g.list(kSlotBegin)[g.slots()] : 0;
    team.each(0, arcs, [=](int64_t i) { taken.m[i] += share(gamma[i], all); });
    team.sync();
  }
  // Before and after all frames.
  KERNEL void begin(Team team, int64_t b, const Passes<T>& passes, Scaled<A> sum) const {
    const Graph<A> g = passes.graph;
    const Row<A> taken = g.row(kTaken), last = passes.after(passes.costs.frames(b));
    team.each(0, g.list(kSlotBegin)[g.slots()], [=](int64_t i) { taken.m[i] = 0; });
    const LossGrad self = *this;
    team.each(0, d_end_weights ? d_end_weights.size(0) : 0, [=](int64_t i) {
      const Automata<T>& a = self.automata;
      if (!a.end_states || a.end_states(0, i) != b) return;
      int32_t none = 0;
      const int32_t s = g.find(kTableA, kStates, none, a.end_states(1, i), false);
      const Scaled<A> cost = scaled_exp(A(a.end_weights(i)));
      if (s >= 0) self.d_end_weights(i) = T(A(self.d_out(b)) * share(last[s] * cost, sum));
    });
    team.sync();
  }
  KERNEL void end(Team team, int64_t b, const Graph<A>& g) const {
    const Row<A> taken = g.row(kTaken);
    const int32_t* const edge = g.list(kPlaceEdge);
    const LossGrad self = *this;
    team.each(0, d_weights ? g.list(kSlotBegin)[g.slots()] : 0,
              [=](int64_t i) { self.d_weights(edge[i]) = T(A(self.d_out(b)) * taken.m[i]); });
  }
  // What has no cost makes all gradients of its sequence NaN.
  KERNEL void spoil(Team team, int64_t b, const Graph<A>& g) const {
    const Row<A> taken = g.row(kTaken);
    team.each(0, g.list(kSlotBegin)[g.slots()], [=](int64_t i) { taken.m[i] = not_a_number<A>(); });
    end(team, b, g);
  }
};

template <class T, class P = Passes<T>>
void fsa_loss_grad(Device& dev, In<T, 3> logits, In<int32_t, 2> edges, In<T, 1> weights,
                   In<int32_t, 2> start_end_states, In<T, 1> d_out, In<int32_t, 1> lengths,
                   In<int32_t, 2> end_states, In<T, 1> end_weights, Out<T, 3> d_logits,
                   Out<T, 1> d_weights, Out<T, 1> d_end_weights, bool normalized) {
  using A = Accum<T>;
  const int64_t steps = logits.size(0), batch = logits.size(1);
  const Automata<T> automata{edges,      weights,     start_end_states,
                             end_states, end_weights, logits.size(2)};
  check_values("lengths", lengths, 0, steps, "the steps of `logits`");
  check_automata(automata, "logits");
  if (d_weights) for_each(dev, d_weights, [=] KERNEL(int64_t e) { d_weights(e) = T(A(0)); });
  if (d_end_weights) {
    for_each(dev, d_end_weights, [=] KERNEL(int64_t i) { d_end_weights(i) = T(A(0)); });
  }
  if (batch == 0) return;
  auto norm = dev.template workspace<A>(normalized ? 0 : steps * batch);
  const Places places = padded(logits, lengths);
  if (!normalized) log_sums(dev, logits, places, norm.data());
  const Memory<T> memory(dev, automata, steps);
  const Graph<A> all = memory.index.all();
  const int64_t* const begin = memory.index.begin();
  const History<A> history = memory.history();
  const Costs<T> costs{logits.data, places, normalized, norm.data()};
  const LossGrad<T> grad{logits, d_logits, d_weights,   d_end_weights,
                         d_out,  automata, norm.data(), batch};
  for_each_item(dev, batch, [=] KERNEL(Team team, int64_t b) {
    const P passes{graph_of(all, begin, b), costs, history};
    const Scaled<A> sum = passes.total(passes, team, b);
    const bool sick = passes.sick(team);
    if (sum.m > 0 && !sick) {
      grad.begin(team, b, passes, sum);
      passes.backward(passes, team, b, grad);
      grad.end(team, b, passes.graph);
    } else if (sick) {
      grad.spoil(team, b, passes.graph);
    }
    const bool done = sum.m > 0 && !sick;
    for (int64_t t = done ? costs.frames(b) : 0; grad.d_logits && t < steps; ++t) {
      grad.fill(team, t, b, sick && t < costs.frames(b) ? not_a_number<A>() : A(0));
    }
  });
}

}  // namespace nativeops
