// SPDX-License-Identifier: Apache-2.0
// The slopes of CTC at the target's classes, kBlock frames at a time, as ops/ctc_loss.h computes
// them on every device: from the kept weights at both ends of the frames, those between are
// computed again. So all blocks of all sequences run at once, and next to nothing is kept.
#pragma once
#include "nativeops/devices/ctc.h"

namespace nativeops::ctc {

// Which labels of a target are the same: 0: the next one that is, n if there is none; 1: that, but
// -1 where one is before it.
using Links = View<int32_t, 3>;  // b 2 s

template <class T, class I>
void link(Device& dev, const Problem<T, I>& problem, const Links& links) {
  const View<int32_t, 2> first{links.data, {links.size(0), links.size(2)}, {links.stride(0), 1}};
  for_each(dev, first, [=] KERNEL(int64_t b, int64_t i) {
    const int64_t n = problem.labels(b);
    if (i >= n) return;
    const int64_t label = problem.label(b, i);
    int64_t next = i + 1, before = 0;
    while (next < n && problem.label(b, next) != label) ++next;
    while (problem.label(b, before) != label) ++before;
    links(b, 0, i) = static_cast<int32_t>(next);
    links(b, 1, i) = static_cast<int32_t>(before < i ? -1 : next);
  });
}

// to[t,b]: softmax less posterior of the blank, then of the class of each label, but kAgain where
// the target had it before.
template <class T, class I>
struct Slopes {
  using A = Accum<T>;
  using Row = View<double, 2>;

  Walk<T, I> walk;
  int64_t block;
  Row before, behind;  // the kept weights: alpha before the first frame, beta behind the last
  double* memory;      // kBlock rows of alpha, two of beta, and `occupied`
  Links links;
  Out<T, 3> to;

  // Numbers of memory for targets of so many labels.
  static int64_t count(int64_t states) { return (2 * (kBlock + 2) + 1) * states; }

  KERNEL int64_t first() const { return block * kBlock; }
  KERNEL int64_t end() const {  // of the frames that the sequence has
    return max2(first(), min2(first() + kBlock, walk.problem.frames(walk.b)));
  }
  KERNEL Row row(int64_t i) const {
    const int64_t states = walk.problem.most_states();
    return dense(memory + i * 2 * states, 2, states);
  }
  KERNEL Row alpha(int64_t t) const { return t < first() ? before : row(t - first()); }
  KERNEL Row beta(int64_t t) const { return t == end() ? behind : row(kBlock + t % 2); }
  KERNEL View<double, 1> occupied() const {  // p(s at t)
    const int64_t states = walk.problem.most_states();
    return dense(memory + 2 * (kBlock + 2) * states, states);
  }

  KERNEL void run(Team team, double score) const {
    const Slopes self = *this;
    const int64_t most = min2(first() + kBlock, to.size(0)), b = walk.b;
    const bool none = !is_finite(score) || end() == first();
    for (int64_t t = none ? first() : end(); t < most; ++t) {
      team.each(0, to.size(2), [=](int64_t i) { self.to(t, b, i) = T(A(0)); });
    }
    if (none) return;
    walk_forth(team);
    const Wide all = total(team);
    for (int64_t t = end() - 1; t >= first(); --t) step(team, t, all);
  }

  // Tells the gradient of frames whose sequence no way says, or has a NaN.
  KERNEL void mark(Team team, Out<float, 3> log_sums, double score) const {
    const int64_t b = walk.b;
    const double mark = score == score ? Extreme<double>::highest : score;
    team.each(first(), end(), [=](int64_t t) { set(log_sums, mark, 0, t, b); });
  }

  KERNEL void walk_forth(Team team) const {
    const Slopes self = *this;
    for (int64_t t = first(); t < end(); ++t) {
      team.each(0, walk.states(), [=](int64_t s) {
        const auto ways = self.walk.before(self.alpha(t - 1), s);
        Walk<T, I>::set_weight(self.alpha(t), s, ways * self.walk.emission(t, s));
      });
      team.sync();
    }
  }

  // alpha[t,s] · Σ beta[t+1,s'] over s' after s
  KERNEL Wide through(int64_t t, int64_t s) const {
    return Walk<T, I>::weight(alpha(t), s) * walk.after(beta(t + 1), s);
  }

  // Their sum over all states: the same in all frames, but for rounding.
  KERNEL Wide total(Team team) const {
    const Slopes self = *this;
    const int64_t t = end() - 1;
    const double e = team.max(0, walk.states(), [=](int64_t s) { return self.through(t, s).e; });
    const double m = team.sum(0, walk.states(), [=](int64_t s) {
      const Wide own = self.through(t, s);
      return own.m * scale_of(own.e - e);
    });
    return {m, e};
  }

  KERNEL void step(Team team, int64_t t, Wide all) const {
    const Slopes self = *this;
    team.each(0, walk.states(), [=](int64_t s) {
      self.occupied()(s) = ratio(self.through(t, s), all);
      const auto ways = self.walk.after(self.beta(t + 1), s);
      Walk<T, I>::set_weight(self.beta(t), s, ways * self.walk.emission(t, s));
    });
    write(team, t);
  }

  KERNEL void write(Team team, int64_t t) const {
    const Slopes self = *this;
    const int64_t b = walk.b, n = walk.n();
    const double blanks = team.sum(0, n + 1, [=](int64_t s) { return self.occupied()(s); });
    team.each(0, to.size(2), [=](int64_t place) {
      const int64_t first = place - 1;
      double sum = blanks;
      if (first >= n || (first >= 0 && self.links(b, 1, first) < 0)) {
        self.to(t, b, place) = T(first >= n ? A(0) : A(kAgain));
        return;
      }
      if (first >= 0) {
        sum = 0;
        for (int64_t i = first; i < n; i = self.links(b, 0, i)) {
          sum += self.occupied()(n + 1 + i);
        }
      }
      const int64_t c = first < 0 ? self.walk.problem.blank : self.walk.problem.label(b, first);
      const LogSum<A> log_sum = get<A>(self.walk.log_sums, t, b);
      self.to(t, b, place) = T(self.walk.problem.softmax(t, b, c, log_sum) - A(sum));
    });
    team.sync();
  }
};

}  // namespace nativeops::ctc
