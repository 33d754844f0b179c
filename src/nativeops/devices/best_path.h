// SPDX-License-Identifier: Apache-2.0
// The best path of an automaton (Viterbi 1967; Rabiner 1989, section III): forward by the best
// scores of all states, and back by how they were reached. A sequence is the work of one team, its
// states that of the team's threads.
#pragma once
#include "nativeops/devices/automaton.h"
#include "nativeops/devices/logarithm.h"
#include "nativeops/devices/parts.h"

namespace nativeops {

// What the search for the best path of a sequence is given, and how it ends.
template <class T>
struct PathSearch {
  using A = Accum<T>;
  In<T, 3> scores;
  Automata<T> automata;
  Graph<A> graph;
  Out<int32_t, 2> alignment;
  int64_t b, frames;

  KERNEL A score(int64_t t, int32_t slot) const {
    return static_cast<A>(bounded(A(scores(t, b, graph.list(kClasses)[slot]))));
  }
  KERNEL double weight(int32_t edge) const { return bounded(A(automata.weights(edge))); }

  // How a state is reached best: by the first of equally good arcs, given as its position among
  // those that lead to any state; -1 if there is none.
  struct Arrival {
    double score;
    int32_t arc;
  };
  // max over all arcs that lead to s of before[from] + emitted(slot) - weight. In double, so that
  // sums are without loss in long sequences of floats.
  template <class F>
  KERNEL Arrival arrive(int64_t s, const double* before, F emitted) const {
    const int32_t *const begin = graph.list(kInBegin), *const from = graph.list(kInFrom);
    const int32_t *const slot = graph.list(kInSlot), *const edge = graph.list(kInEdge);
    Arrival best{lowest<double>(), -1};
    for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
      const double score = (before[from[i]] + emitted(slot[i])) - weight(edge[i]);
      if (score > best.score) best.score = score, best.arc = i;
    }
    return best;
  }
  // Writes the class of frame t; the state before it.
  KERNEL int32_t step_back(Team team, int64_t t, int32_t arc) const {
    if (team.rank() == 0) alignment(t, b) = graph.list(kClasses)[graph.list(kInSlot)[arc]];
    return graph.list(kInFrom)[arc];
  }

  // The best end state, -1 if none is reached; of equal ones the first.
  KERNEL int32_t best_end(const double* last, double* total) const {
    int32_t where = -1, none = 0;
    double most = lowest<double>();
    for_ends(automata, graph, b, [&](int32_t state, double own) {
      const int32_t s = graph.find(kTableA, kStates, none, state, false);
      const double cost = bounded(own);
      if (s < 0 || !(last[s] - cost > most)) return;
      most = last[s] - cost;
      where = s;
    });
    *total = most;
    return where;
  }
  KERNEL void fill(Team team, int64_t low, int64_t high, int64_t value) const {
    const Out<int32_t, 2> alignment = this->alignment;
    const int64_t b = this->b;
    team.each(low, high, [=](int64_t t) { alignment(t, b) = static_cast<int32_t>(value); });
  }
  // The state that the best path ends in, and its score; -1 where there is none, or some score or
  // weight is `sick`.
  KERNEL int32_t finish(Team team, const double* last, bool sick, int64_t mask_idx,
                        double* total) const {
    const int32_t state = best_end(last, total);
    fill(team, frames, scores.size(0), mask_idx);
    if (!sick && state >= 0) return state;
    fill(team, 0, frames, mask_idx);
    *total = sick ? not_a_number<double>() : lowest<double>();
    return -1;
  }
};

// Best scores of the states, before and after a frame in turn, and its emissions; how states were
// reached, for a part of all frames; and the rows those parts begin with.
struct Trellis {
  double* best;
  int32_t* came;
  int64_t width, part;

  HOST_DEVICE double* row(int64_t i) const { return best + i * width; }
  HOST_DEVICE double* kept(int64_t p) const { return row(3 + p); }
  HOST_DEVICE int32_t* moves(int64_t t) const { return came + t % part * width; }
  // Of the sequence whose lists begin there.
  HOST_DEVICE Trellis from(int64_t base) const { return {best + base, came + base, width, part}; }
};

template <class T>
struct BestPath {
  using A = Accum<T>;
  PathSearch<T> search;
  Trellis trellis;

  KERNEL void advance(Team team, int64_t t, const double* before, double* next) const {
    double* const emitted = trellis.row(2);
    const PathSearch<T> search = this->search;
    const Row<A> seen = search.graph.row(kSum);
    team.each(0, search.graph.slots(), [=](int64_t s) {
      const A score = search.score(t, static_cast<int32_t>(s));
      if (!(score < highest<A>())) seen.m[s] = 1;
      emitted[s] = score;
    });
    team.sync();
    int32_t* const came = trellis.moves(t);
    team.each(0, search.graph.states(), [=](int64_t s) {
      const auto best = search.arrive(s, before, [=](int32_t slot) { return emitted[slot]; });
      next[s] = best.score;
      came[s] = best.arc;
    });
    team.sync();
  }
  // The frames of a part; where the last scores are.
  KERNEL const double* run_part(Team team, int64_t low, int64_t high) const {
    const double* before = trellis.kept(low / trellis.part);
    for (int64_t t = low; t < high; ++t) {
      double* const next = trellis.row(t % 2);
      advance(team, t, before, next);
      before = next;
    }
    return before;
  }
  // Returns the score of the best path.
  KERNEL double operator()(Team team, int64_t mask_idx) const {
    const int64_t frames = search.frames, states = search.graph.states(), part = trellis.part;
    const Row<A> seen = search.graph.row(kSum);
    double* const first = trellis.kept(0);
    team.each(0, states, [=](int64_t s) { first[s] = s == 0 ? 0.0 : lowest<double>(); });
    team.each(0, search.graph.slots(), [=](int64_t s) { seen.m[s] = 0; });
    team.sync();
    const double* last = first;
    for (int64_t low = 0; low < frames; low += part) {
      last = run_part(team, low, min2(frames, low + part));
      double* const next = trellis.kept(low / part + 1);
      const double* const from = last;
      team.each(0, states, [=](int64_t s) { next[s] = from[s]; });
      team.sync();
    }
    double total = 0;
    int32_t state = search.finish(team, last, is_sick(team, search.graph), mask_idx, &total);
    for (int64_t p = (frames - 1) / part; state >= 0 && frames > 0 && p >= 0; --p) {
      const int64_t high = min2(frames, (p + 1) * part);
      team.sync();  // the last part's moves have been read
      if (high < frames) run_part(team, p * part, high);
      for (int64_t t = high - 1; t >= p * part; --t) {
        state = search.step_back(team, t, trellis.moves(t)[state]);
      }
    }
    return total;
  }
};

}  // namespace nativeops
