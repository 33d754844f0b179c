// SPDX-License-Identifier: Apache-2.0
// The full-sum loss over automata, and its gradient. Declared in fsa_loss.py.
#pragma once
#include "nativeops/devices/forward_backward.h"
#include "nativeops/devices/softmax.h"

namespace nativeops {

// The softmax of frames, by teams.
struct TeamSoftmax {
  // norm[t,b] = log Σ_c e^logits[t,b,c]; 0 where all logits are -infinity, which then stay that.
  template <class T>
  static void log_sums(Device& dev, In<T, 3> logits, const Places& places, LogSum<Accum<T>>* norm) {
    using A = Accum<T>;
    const int64_t batch = logits.size(1), classes = logits.size(2);
    for_each_item(
        dev, logits.size(0) * batch,
        [=] KERNEL(Team team, int64_t i) {
          const int64_t t = i / batch, b = i % batch;
          if (t >= places.frames(b)) return;
          const SoftmaxSums<A> of = softmax_sums(team, at(at(logits, t), b));
          if (team.rank() > 0) return;
          norm[i] = of.largest == lowest<A>() ? LogSum<A>{0, 0} : of.log_sum();
        },
        classes);
  }
  // e^x, x being a logit minus its norm.
  template <class A>
  static KERNEL A power(A x) {
    return exp(x);
  }
};

// loss[b] = -log Σ over all paths of Π_t p[t, b, class] · e^-weight,  p = softmax(logits)
template <class T, class Walk = TeamEach<Passes<T>>, class Softmax = TeamSoftmax>
void fsa_loss(Device& dev, In<T, 3> logits, In<int32_t, 2> edges, In<T, 1> weights,
              In<int32_t, 2> start_end_states, In<int32_t, 1> lengths, In<int32_t, 2> end_states,
              In<T, 1> end_weights, Out<T, 1> out, bool normalized, bool zero_infinity) {
  using A = Accum<T>;
  const int64_t steps = logits.size(0), batch = logits.size(1);
  const Automata<T> automata{edges,      weights,     start_end_states,
                             end_states, end_weights, logits.size(2)};
  check_range("lengths", lengths, 0, steps, "the steps of `logits`");
  check_automata(automata, "logits");
  if (batch == 0) return;
  auto norm = dev.template workspace<LogSum<A>>(normalized ? 0 : steps * batch);
  const Places places = padded(logits, lengths);
  if (!normalized) Softmax::log_sums(dev, logits, places, norm.data());
  const Index<T> index(dev, automata);
  make_index(dev, automata, index);
  const Costs<T> costs{logits.data, places, normalized, norm.data()};
  Walk::totals(dev, index, costs, [=] KERNEL(Team team, int64_t b, Scaled<A> sum, bool sick) {
    if (team.rank() > 0) return;
    const bool none = !sick && sum.m == 0;
    const A cost = sick ? not_a_number<A>() : static_cast<A>(long_cost_of(sum));
    out(b) = T(none && zero_infinity ? A(0) : cost);
  });
}

// d_logits[t,b,c] = d_out[b] · (p[t,b,c] - posterior of c in t), the first only of logits
// d_weights[e]    = d_out[b] · Σ_t posterior of e in t
// d_end_weights   = d_out[b] · posterior of the end state
template <class T, class Softmax>
struct LossGrad {
  using A = Accum<T>;
  In<T, 3> logits;
  Out<T, 3> d_logits;
  Out<T, 1> d_weights, d_end_weights;
  In<T, 1> d_out;
  Automata<T> automata;
  const LogSum<A>* norm;
  int64_t batch;

  KERNEL A own(int64_t t, int64_t b, int64_t c) const {
    return norm ? Softmax::power(norm[t * batch + b].from(A(logits(t, b, c)))) : A(0);
  }
  // The first part of d_logits in a frame.
  KERNEL void write_own(Team team, In<T, 1> x, LogSum<A> log_sum, A d, Out<T, 1> row) const {
    const bool side_by_side = x.stride(0) == 1 && row.stride(0) == 1;
    const auto put = [=](int64_t from, int64_t to) {
      team.each(0, row.size(0), [=](int64_t c) {
        row.data[c * to] = T(d * Softmax::power(log_sum.from(A(x.data[c * from]))));
      });
    };
    if (!norm) return team.each(0, row.size(0), [=](int64_t c) { row(c) = T(A(0)); });
    side_by_side ? put(1, 1) : put(x.stride(0), row.stride(0));  // known to be 1: vectors
  }
  KERNEL void fill(Team team, int64_t t, int64_t b, A value) const {
    const Out<T, 1> row = at(at(d_logits, t), b);
    team.each(0, row.size(0), [=](int64_t c) { row(c) = T(value); });
  }
  template <class P>
  KERNEL void operator()(Team team, int64_t t, int64_t b, const P& passes, Row<A> beta,
                         Scaled<A> all) const {
    const Graph<A>& g = passes.graph;
    const Row<A> sums = g.row(kSum);
    const int32_t* const label = g.list(kClasses);
    const A d = A(d_out(b));
    const LossGrad self = *this;
    if (d_logits) {
      const Out<T, 1> row = at(at(d_logits, t), b);
      write_own(team, at(at(logits, t), b), norm ? norm[t * batch + b] : LogSum<A>{0, 0}, d, row);
      team.sync();
      team.each(0, g.slots(), [=](int64_t s) {
        row(label[s]) = T(d * (self.own(t, b, label[s]) - share_of(sums[s], all)));
      });
    }
    team.sync();
    if (d_weights) passes.take(team, t, beta, all);
  }
  // Before and after a part's frames: `sums` gets how often each arc was taken in them.
  template <class P>
  KERNEL void begin(Team team, const P& passes) const {
    if (d_weights) passes.begin_taken(team);
  }
  template <class P>
  KERNEL void end(Team team, const P& passes, Row<A> sums) const {
    if (d_weights) passes.end_taken(team, sums.m);
  }
  // After the way forward: the gradients of the ends; whether there are others. What has no cost
  // makes those of its sequence NaN.
  template <class P>
  KERNEL bool found(Team team, int64_t b, const P& passes, Scaled<A> sum, bool sick) const {
    const Graph<A>& g = passes.graph;
    const LossGrad self = *this;
    const bool any = !sick && sum.m > 0;
    const int64_t frames = passes.costs.frames(b), steps = d_logits ? d_logits.size(0) : 0;
    for (int64_t t = any ? frames : 0; t < steps; ++t) {
      fill(team, t, b, sick && t < frames ? not_a_number<A>() : A(0));
    }
    if (sick) write_weights(team, passes, [=](int64_t) { return not_a_number<A>(); });
    if (!any && !sick) return false;
    const Row<A> last = passes.after(frames);
    if (d_end_weights) {
      each_end(team, automata, g, b, [=](int64_t i, int32_t s) {
        if (s < 0 && !sick) return;
        const Scaled<A> end = scaled_exp(self.automata.end_cost(i));
        const A share = sick ? not_a_number<A>() : share_of(last[s] * end, sum);
        self.d_end_weights(i) = T(A(self.d_out(b)) * share);
      });
    }
    team.sync();
    return any;
  }
  HOST_DEVICE bool sums_up() const { return static_cast<bool>(d_weights); }
  template <class P>
  KERNEL void finish(Team team, int64_t b, const P& passes) const {
    const History<A> history = passes.history;
    const int64_t base = passes.graph.base, parts = passes.parts(b);
    const A d = A(d_out(b));
    write_weights(team, passes, [=](int64_t i) {
      A sum = 0;
      for (int64_t p = 0; p < parts; ++p) sum += history.first_of(p, base).m[i];
      return d * sum;
    });
  }
  template <class P, class F>
  KERNEL void write_weights(Team team, const P& passes, F value) const {
    const int32_t* const edge = passes.taken_edges();
    const Out<T, 1> to = d_weights;
    team.each(0, to ? passes.arcs() : 0, [=](int64_t i) { to(edge[i]) = T(value(i)); });
  }
};

template <class T, class Walk = TeamEach<Passes<T>>, class Softmax = TeamSoftmax>
void fsa_loss_grad(Device& dev, In<T, 3> logits, In<int32_t, 2> edges, In<T, 1> weights,
                   In<int32_t, 2> start_end_states, In<T, 1> d_out, In<int32_t, 1> lengths,
                   In<int32_t, 2> end_states, In<T, 1> end_weights, Out<T, 3> d_logits,
                   Out<T, 1> d_weights, Out<T, 1> d_end_weights, bool normalized) {
  using A = Accum<T>;
  const int64_t steps = logits.size(0), batch = logits.size(1);
  const Automata<T> automata{edges,      weights,     start_end_states,
                             end_states, end_weights, logits.size(2)};
  check_range("lengths", lengths, 0, steps, "the steps of `logits`");
  check_automata(automata, "logits");
  if (d_weights) for_each(dev, d_weights, [=] KERNEL(int64_t e) { d_weights(e) = T(A(0)); });
  if (d_end_weights) {
    for_each(dev, d_end_weights, [=] KERNEL(int64_t i) { d_end_weights(i) = T(A(0)); });
  }
  if (batch == 0) return;
  auto norm = dev.template workspace<LogSum<A>>(normalized ? 0 : steps * batch);
  const Places places = padded(logits, lengths);
  if (!normalized) Softmax::log_sums(dev, logits, places, norm.data());
  const Memory<T> memory(dev, automata, steps);
  const Costs<T> costs{logits.data, places, normalized, norm.data()};
  const LossGrad<T, Softmax> grad{logits, d_logits, d_weights,   d_end_weights,
                                  d_out,  automata, norm.data(), batch};
  Walk::run(dev, memory, costs, grad);
}

}  // namespace nativeops
