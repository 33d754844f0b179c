// SPDX-License-Identifier: Apache-2.0
// Posteriors of classes, summed over all paths of automata. Declared in fast_baum_welch.py.
#pragma once
#include "nativeops/devices/forward_backward.h"

namespace nativeops {

// fwdbwd[t,b,c] = -log (sum of all paths with class c in frame t / sum of all paths); `total(b,
// cost)` gets the cost of all paths of a sequence together.
template <class T, class F>
struct WritePosteriors {
  using A = Accum<T>;
  T* out;
  Places places;
  int64_t classes;
  F total;

  KERNEL void fill(Team team, int64_t t, int64_t b, A value) const {
    T* const row = out + places.of(t, b, 0);
    const int64_t n = classes, one = places.one;
    const auto put = [=](int64_t step) {
      team.each(0, n, [=](int64_t c) { row[c * step] = T(value); });
    };
    one == 1 ? put(1) : put(one);  // known to be 1, it makes vectors
    team.sync();
  }
  // After the way forward: writes the total; whether there are posteriors to compute.
  template <class P>
  KERNEL bool found(Team team, int64_t b, const P&, Scaled<A> sum, bool sick) const {
    if (team.rank() == 0) total(b, sick ? not_a_number<A>() : static_cast<A>(long_cost_of(sum)));
    const int64_t frames = places.frames(b);
    const bool any = !sick && sum.m > 0;
    const A value = sick ? not_a_number<A>() : highest<A>();
    for (int64_t t = 0; !any && t < frames; ++t) fill(team, t, b, value);
    return any;
  }
  template <class P>
  KERNEL void operator()(Team team, int64_t t, int64_t b, const P& passes, Row<A>,
                         Scaled<A> all) const {
    fill(team, t, b, highest<A>());
    const Graph<A>& g = passes.graph;
    const Row<A> sums = g.row(kSum), costs = g.row(kEmitted);
    const int32_t* const label = g.list(kClasses);
    T* const row = out + places.of(t, b, 0);
    const int64_t one = places.one;
    team.each(0, g.slots(), [=](int64_t s) {
      costs.m[s] = cost_of(Scaled<A>{sums.m[s] / all.m, max2(sums.k[s], Scale<A>::none) - all.k});
    });
    team.each(0, g.slots(), [=](int64_t s) { row[label[s] * one] = T(max2(costs.m[s], A(0))); });
    team.sync();
  }
  template <class P>
  KERNEL void begin(Team, const P&) const {}
  template <class P>
  KERNEL void end(Team, const P&, Row<A>) const {}
  HOST_DEVICE bool sums_up() const { return false; }
  template <class P>
  KERNEL void finish(Team, int64_t, const P&) const {}
};
template <class T, class F>
WritePosteriors<T, F> write_posteriors(T* out, const Places& places, int64_t classes, F total) {
  return {out, places, classes, total};
}

template <class T, class Walk = TeamEach<Passes<T>>>
void fast_baum_welch(Device& dev, In<T, 3> am_scores, In<int32_t, 2> edges, In<T, 1> weights,
                     In<int32_t, 2> start_end_states, In<int32_t, 1> lengths,
                     In<int32_t, 2> end_states, In<T, 1> end_weights, Out<T, 3> fwdbwd,
                     Out<T, 2> obs_scores) {
  using A = Accum<T>;
  const int64_t steps = am_scores.size(0), classes = am_scores.size(2);
  const Automata<T> automata{edges, weights, start_end_states, end_states, end_weights, classes};
  check_range("lengths", lengths, 0, steps, "the steps of `am_scores`");
  check_automata(automata, "am_scores");
  if (automata.batch() == 0 || steps == 0) return;
  const Memory<T> memory(dev, automata, steps);
  const auto write = write_posteriors<T>(fwdbwd.data, padded(fwdbwd, lengths), classes,
                                         [=] KERNEL(int64_t b, A cost) {
                                           const int64_t frames = length_of(lengths, b, steps);
                                           for (int64_t t = 0; t < steps; ++t)
                                             obs_scores(t, b) = T(t < frames ? cost : A(0));
                                         });
  for_each_item(dev, automata.batch(), [=] KERNEL(Team team, int64_t b) {
    for (int64_t t = write.places.frames(b); t < steps; ++t) write.fill(team, t, b, highest<A>());
  });
  Walk::run(dev, memory, Costs<T>{am_scores.data, padded(am_scores, lengths)}, write);
}

// Refuses sequences that do not lie within the frames, or that share some.
inline void check_packed(In<int32_t, 1> starts, In<int32_t, 1> lengths, int64_t frames) {
  if constexpr (kHostReads) {
    check_range("seq_starts", starts, 0, frames, "the frames of `am_scores`");
    std::vector<bool> taken(static_cast<size_t>(frames));
    for (int64_t b = 0; b < starts.size(0); ++b) {
      const std::string what = element("lengths", b);
      if (lengths(b) < 0 || lengths(b) > frames - starts(b)) {
        refuse(what, lengths(b), 0, frames - starts(b),
               "the frames of `am_scores` from its start on");
      }
      for (int64_t t = starts(b); t < starts(b) + lengths(b); ++t) {
        if (taken[static_cast<size_t>(t)]) {
          refuse(what, lengths(b), "then frame " + std::to_string(t) + " belongs to two sequences");
        }
        taken[static_cast<size_t>(t)] = true;
      }
    }
  }
}

template <class T, class Walk = TeamEach<Passes<T>>>
void fast_baum_welch_packed(Device& dev, In<T, 2> am_scores, In<int32_t, 1> seq_starts,
                            In<int32_t, 1> lengths, In<int32_t, 2> edges, In<T, 1> weights,
                            In<int32_t, 2> start_end_states, In<int32_t, 2> end_states,
                            In<T, 1> end_weights, Out<T, 2> fwdbwd, Out<T, 1> obs_scores) {
  using A = Accum<T>;
  const int64_t frames = am_scores.size(0), classes = am_scores.size(1);
  const Automata<T> automata{edges, weights, start_end_states, end_states, end_weights, classes};
  check_packed(seq_starts, lengths, frames);
  check_automata(automata, "am_scores");
  for_each(dev, fwdbwd, [=] KERNEL(int64_t n, int64_t c) { fwdbwd(n, c) = T(highest<A>()); });
  if (automata.batch() == 0) return;
  const Memory<T> memory(dev, automata, frames);
  const auto write =
      write_posteriors<T>(fwdbwd.data, packed(fwdbwd, seq_starts, lengths), classes,
                          [=] KERNEL(int64_t b, A cost) { obs_scores(b) = T(cost); });
  Walk::run(dev, memory, Costs<T>{am_scores.data, packed(am_scores, seq_starts, lengths)}, write);
}

}  // namespace nativeops
