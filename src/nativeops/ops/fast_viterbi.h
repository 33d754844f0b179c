// SPDX-License-Identifier: Apache-2.0
// The best path of automata. Declared in fast_viterbi.py.
#pragma once
#include "nativeops/devices/automaton.h"

namespace nativeops {

// Best scores of the states in time, in double, so that they are sums without loss in long
// sequences of floats; how states were reached, for a part of all frames; and the rows those parts
// begin with.
struct Trellis {
  double* best;
  int32_t* came;
  int64_t width, part;

  HOST_DEVICE double* row(int64_t i, int64_t base) const { return best + i * width + base; }
  HOST_DEVICE double* kept(int64_t p, int64_t base) const { return row(3 + p, base); }
};
inline int64_t viterbi_part(int64_t steps) {
  int64_t part = 1;
  while (part * part < steps) ++part;
  return part;
}

template <class T>
struct BestPath {
  using A = Accum<T>;
  In<T, 3> scores;
  Automata<T> automata;
  Graph<A> graph;
  Trellis trellis;
  Out<int32_t, 2> alignment;
  int64_t b, frames;

  // next[s] = max over all edges that lead to s of before[from] + score - weight; the first of
  // equal ones. came is the position of that edge among those that lead to any state, -1 if there
  // is none.
  KERNEL void advance(Team team, int64_t t, const double* before, double* next) const {
    const int32_t* const classes = graph.list(kClasses);
    double* const emitted = trellis.row(2, graph.base);
    const Row<A> seen = graph.row(kSum);
    const BestPath self = *this;
    team.each(0, graph.slots(), [=](int64_t s) {
      const A score = self.scores(t, self.b, classes[s]);
      if (!is_cost(-score)) seen.m[s] = 1;
      emitted[s] = score;
    });
    team.sync();
    const int32_t *const begin = graph.list(kInBegin), *const from = graph.list(kInFrom);
    const int32_t *const slot = graph.list(kInSlot), *const edge = graph.list(kInEdge);
    int32_t* const came = trellis.came + t % trellis.part * trellis.width + graph.base;
    team.each(0, graph.states(), [=](int64_t s) {
      double most = lowest<double>();
      int32_t how = -1;
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        const double weight = A(self.automata.weights(edge[i]));
        const double score = (before[from[i]] + emitted[slot[i]]) - weight;
        if (score > most) most = score, how = i;
      }
      next[s] = most;
      came[s] = how;
    });
    team.sync();
  }
  // The frames of a part; where the last scores are.
  KERNEL const double* run_part(Team team, int64_t low, int64_t high) const {
    const double* before = trellis.kept(low / trellis.part, graph.base);
    for (int64_t t = low; t < high; ++t) {
      double* const next = trellis.row(t % 2, graph.base);
      advance(team, t, before, next);
      before = next;
    }
    return before;
  }
  // The best end state, -1 if none is reached; of equal ones the first.
  KERNEL int32_t best_end(const double* last, double* total) const {
    int32_t where = -1, none = 0;
    *total = lowest<double>();
    const int64_t ends = automata.end_states ? automata.end_states.size(1) : 1;
    for (int64_t i = 0; i < ends; ++i) {
      if (automata.end_states && automata.end_states(0, i) != b) continue;
      const bool weighted = automata.end_states && automata.end_weights;
      const double cost = weighted ? double(A(automata.end_weights(i))) : 0.0;
      const int32_t state =
          automata.end_states ? automata.end_states(1, i) : automata.start_end_states(1, b);
      const int32_t s = graph.find(kTableA, kStates, none, state, false);
      if (s < 0 || !(last[s] - cost > *total)) continue;
      *total = last[s] - cost;
      where = s;
    }
    return where;
  }
  KERNEL void fill(Team team, int64_t low, int64_t high, int64_t value) const {
    const Out<int32_t, 2> alignment = this->alignment;
    const int64_t b = this->b;
    team.each(low, high, [=](int64_t t) { alignment(t, b) = static_cast<int32_t>(value); });
  }
  KERNEL bool sick(Team team) const {
    const Row<A> seen = graph.row(kSum);
    return graph.sick() || team.any(0, graph.slots(), [=](int64_t s) { return seen.m[s] != 0; });
  }
  // Returns the score of the best path.
  KERNEL double operator()(Team team, int64_t mask_idx) const {
    const int64_t base = graph.base, part = trellis.part;
    const Row<A> seen = graph.row(kSum);
    double* const first = trellis.kept(0, base);
    team.each(0, graph.states(), [=](int64_t s) { first[s] = s == 0 ? 0.0 : lowest<double>(); });
    team.each(0, graph.slots(), [=](int64_t s) { seen.m[s] = 0; });
    team.sync();
    const double* last = first;
    for (int64_t low = 0; low < frames; low += part) {
      last = run_part(team, low, min2(frames, low + part));
      double* const next = trellis.kept(low / part + 1, base);
      const double* const from = last;
      team.each(0, graph.states(), [=](int64_t s) { next[s] = from[s]; });
      team.sync();
    }
    double total = 0;
    int32_t state = best_end(last, &total);
    const bool spoilt = sick(team);
    if (spoilt || state < 0) {
      fill(team, 0, frames, mask_idx);
      return spoilt ? not_a_number<double>() : lowest<double>();
    }
    for (int64_t p = (frames - 1) / part; frames > 0 && p >= 0; --p) {
      const int64_t high = min2(frames, (p + 1) * part);
      team.sync();  // the last part's moves have been read
      if (high < frames) run_part(team, p * part, high);
      for (int64_t t = high - 1; t >= p * part; --t) {
        const int32_t how = trellis.came[t % part * trellis.width + base + state];
        if (team.rank() == 0) alignment(t, b) = graph.list(kClasses)[graph.list(kInSlot)[how]];
        state = graph.list(kInFrom)[how];
      }
    }
    return total;
  }
};

template <class T>
void fast_viterbi(Device& dev, In<T, 3> am_scores, In<int32_t, 2> edges, In<T, 1> weights,
                  In<int32_t, 2> start_end_states, In<int32_t, 1> lengths,
                  In<int32_t, 2> end_states, In<T, 1> end_weights, Out<int32_t, 2> alignment,
                  Out<T, 1> scores, int64_t mask_idx) {
  using A = Accum<T>;
  const int64_t steps = am_scores.size(0), batch = am_scores.size(1);
  const Automata<T> automata{edges,      weights,     start_end_states,
                             end_states, end_weights, am_scores.size(2)};
  check_values("lengths", lengths, 0, steps, "the steps of `am_scores`");
  check_automata(automata, "am_scores");
  if (batch == 0) return;
  const Index<T> index(dev, automata);
  make_index(dev, automata, index);
  const int64_t part = viterbi_part(max2<int64_t>(steps, 1)), parts = (steps + part - 1) / part;
  auto best = dev.template workspace<double>((3 + parts + 1) * index.width);
  auto came = dev.template workspace<int32_t>(part * index.width);
  const Trellis trellis{best.data(), came.data(), index.width, part};
  const Graph<A> all = index.all();
  const int64_t* const begin = index.begin();
  for_each_item(dev, batch, [=] KERNEL(Team team, int64_t b) {
    const int64_t frames = length_of(lengths, b, steps);
    const BestPath<T> path{am_scores, automata, graph_of(all, begin, b), trellis, alignment,
                           b,         frames};
    path.fill(team, frames, steps, mask_idx);
    const double score = path(team, mask_idx);
    if (team.rank() == 0) scores(b) = T(static_cast<A>(score));
  });
}

}  // namespace nativeops
