// SPDX-License-Identifier: Apache-2.0
// The passes of forward_backward.h by diagonals, for automata that are made of them (diagonals.h);
// others walk as in cpu/forward_backward.h.
#pragma once
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "nativeops/devices/cpu/diagonals.h"
#include "nativeops/devices/cpu/forward_backward.h"
#include "nativeops/devices/cpu/unroll.h"

namespace nativeops::tuned {

// A row of states between others that no path is in.
template <class A>
struct Padded {
  Numbered<A> numbers;
  explicit Padded(int32_t states) : numbers(static_cast<size_t>(states + 2 * kFar)) {}
  Row<A> row() { return {numbers.m.data() + kFar, numbers.k.data() + kFar}; }
};

// put(s, Σ_d from[s + step[d]] · weights[d][s]) for all states, by D diagonals
template <int D, class A, class Put>
[[gnu::flatten]] void multiply(int32_t states, Row<A> from, const std::array<int32_t, D>& step,
                               std::vector<Numbered<A>>& weights, const Put& put) {
  using K = Exponent<A>;
  const A *m[D], *weight_m[D];
  const K *k[D], *weight_k[D];
  for (int d = 0; d < D; ++d) {
    m[d] = from.m + step[d], k[d] = from.k + step[d];
    weight_m[d] = weights[d].m.data(), weight_k[d] = weights[d].k.data();
  }
  NATIVEOPS_IVDEP
  for (int32_t s = 0; s < states; ++s) {
    K top = Scale<A>::none, own[D];
    for (int d = 0; d < D; ++d) {
      own[d] = max2(k[d][s] + weight_k[d][s], Scale<A>::none);
      top = max2(top, own[d]);
    }
    A sum = 0;
    for (int d = 0; d < D; ++d) sum += m[d][s] * weight_m[d][s] * power_of<A>(own[d] - top);
    put(s, Scaled<A>{sum, top});
  }
}

template <class T>
struct BandPasses : Passes<T> {
  using A = Accum<T>;
  using Passes<T>::graph;

  const Diagonals diagonals;
  // The weights of their arcs, by the state led to and by the one left.
  mutable std::vector<Numbered<A>> in, out;
  std::optional<VectorPasses<T>> general;  // where arcs are of other kinds
  mutable std::optional<Slots<A>> slots;
  std::vector<int32_t> place;  // in the rows of slots, of each state, then of each arc of odd ones
  mutable Padded<A> around;    // after `retreat`: beta of each state times what its arcs emit
  // Sums of take: by diagonals and states, then of arcs of no diagonal.
  mutable std::vector<A> taken;
  std::vector<std::pair<int32_t, int32_t>> odd_arcs;  // these, and the state each leads to

  BandPasses(const Graph<A>& g, const Costs<T>& costs, const History<A>& history)
      : Passes<T>{g, costs, history}, diagonals(g), around(g.states()) {
    if (diagonals.fit()) {
      place_weights();
      place_items();
      taken.resize(in.size() * diagonals.slot.size() + odd_arcs.size());
    } else {
      general.emplace(g, costs, history);
    }
  }

  void forward(Team team, int64_t t, int64_t b, Row<A> before, Row<A> next) const {
    if (general) return general->forward(team, t, b, before, next);
    this->emit(team, t, b);
    const Row<A> emitted = graph.row(kEmitted), all = around.row();
    const int32_t states = graph.states(), *const said = diagonals.slot.data();
    for (int32_t s = 0; s < states; ++s) all.set(s, before[s]);
    by_diagonals(-1, in, [=](int32_t s, Scaled<A> sum) __attribute__((always_inline)) {
      next.set(s, normalised(sum * emitted[said[s]]));
    });
    for (const int32_t s : diagonals.odd_in) next.set(s, this->arriving(s, before));
  }

  void step_back(Team team, int64_t t, int64_t b, Row<A> beta, Row<A> next) const {
    if (general) return general->step_back(team, t, b, beta, next);
    retreat(team, t, b, beta, next);
    pass_through(t, beta);
    slots->sums(slots->items.row(), graph.row(kSum));
  }
  // The first half of it: `next` alone.
  void retreat(Team team, int64_t t, int64_t b, Row<A> beta, Row<A> next) const {
    if (general) return general->retreat(team, t, b, beta, next);
    this->emit(team, t, b);
    const Row<A> emitted = graph.row(kEmitted), all = around.row();
    const int32_t states = graph.states(), *const said = diagonals.slot.data();
    NATIVEOPS_IVDEP
    for (int32_t s = 0; s < states; ++s) all.set(s, normalised(beta[s] * emitted[said[s]]));
    by_diagonals(1, out, [=](int32_t s, Scaled<A> sum) __attribute__((always_inline)) {
      next.set(s, normalised(sum));
    });
    const int32_t* const begin = graph.list(kOutBegin);
    for (const int32_t s : diagonals.odd_out) {
      next.set(s, scaled_sum<A>(begin[s], begin[s + 1],
                                [=](int64_t i) { return this->leaving(i, beta); }));
    }
  }

  void begin_taken(Team team) const {
    if (general) return general->begin_taken(team);
    std::fill(taken.begin(), taken.end(), A(0));
  }
  [[gnu::flatten]] void take(Team team, int64_t t, Row<A> beta, Scaled<A> all) const {
    if (general) return general->take(team, t, beta, all);
    const Row<A> before = this->history.before(t, graph.base), behind = around.row();
    const int32_t states = graph.states();
    A* to = taken.data();
    for (size_t d = 0; d < in.size(); ++d, to += states) {
      const int32_t ahead = diagonals.ahead[d];
      const int32_t low = std::max(ahead, 0), high = states + std::min(ahead, 0);
      const Row<A> from{before.m - ahead, before.k - ahead}, weight = in[d].row();
      NATIVEOPS_IVDEP
      for (int32_t s = low; s < high; ++s) to[s] += share_of(from[s] * weight[s] * behind[s], all);
    }
    for (const auto& [i, s] : odd_arcs) *to++ += share_of(through(i, s, before, beta), all);
  }
  void end_taken(Team team, A* to) const {
    if (general) return general->end_taken(team, to);
    const int32_t states = graph.states(), *const begin = graph.list(kInBegin);
    const A* odd = taken.data() + in.size() * states;
    for (int32_t s = 0; s < states; ++s) {
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        const int32_t which = diagonals.of[i];
        to[i] = which < 0 ? *odd++ : taken[which * static_cast<size_t>(states) + s];
      }
    }
  }
  const int32_t* taken_edges() const {
    return general ? general->taken_edges() : graph.list(kInEdge);
  }

 private:
  // Of the lengths of arcs: `direction` times as many states further.
  template <class Put>
  void by_diagonals(int32_t direction, std::vector<Numbered<A>>& weights, const Put& put) const {
    const auto of = [&](auto count) __attribute__((always_inline)) {
      constexpr int kCount = decltype(count)::value;
      std::array<int32_t, kCount> step;
      for (int d = 0; d < kCount; ++d) step[d] = direction * diagonals.ahead[d];
      multiply<kCount, A>(graph.states(), around.row(), step, weights, put);
    };
    simd::with_one_of<1, 2, 3, kDiagonals>(diagonals.count(), of);
  }

  // The sum of all paths through an arc to state s.
  Scaled<A> through(int32_t i, int32_t s, Row<A> before, Row<A> beta) const {
    const int32_t from = graph.list(kInFrom)[i], slot = graph.list(kInSlot)[i];
    const Scaled<A> one = normalised(before[from] * graph.row(kInWeight)[i]);
    return one * normalised(graph.row(kEmitted)[slot] * beta[s]);
  }
  // The sums of all paths through each state or, where arcs of several classes lead to it, through
  // each of these.
  [[gnu::flatten]] void pass_through(int64_t t, Row<A> beta) const {
    const Row<A> before = this->history.before(t, graph.base);
    const Row<A> after = this->history.after(t, graph.base);
    const Row<A> items = slots->items.row();
    const int32_t states = graph.states(), *const at = place.data();
    NATIVEOPS_IVDEP
    for (int32_t s = 0; s < states; ++s) {
      items.m[at[s]] = after.m[s] * beta.m[s];
      items.k[at[s]] = max2(after.k[s] + beta.k[s], Scale<A>::none);
    }
    const int32_t *const begin = graph.list(kInBegin), *next = at + states;
    for (const int32_t s : diagonals.odd_in) {
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        const Scaled<A> all = through(i, s, before, beta);
        items.set(*next++, {all.m, max2(all.k, Scale<A>::none)});
      }
    }
  }

  void place_weights() {
    const auto states = static_cast<size_t>(graph.states());
    in.assign(diagonals.ahead.size(), Numbered<A>(states));
    out = in;
    const int32_t *const begin = graph.list(kInBegin), *const from = graph.list(kInFrom);
    for (int32_t s = 0; s < graph.states(); ++s) {
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        const int32_t which = diagonals.of[i];
        if (which < 0) {
          odd_arcs.push_back({i, s});
          continue;
        }
        in[which].row().set(s, graph.row(kInWeight)[i]);
        out[which].row().set(from[i], graph.row(kInWeight)[i]);
      }
    }
  }
  // Items are the states and the arcs of odd ones, which do not count themselves: those, and states
  // that no arc leads to, belong to a slot of their own behind all others.
  void place_items() {
    const int32_t states = graph.states(),
                  none = graph.slots(), *const begin = graph.list(kInBegin);
    std::vector<int32_t> slot_of = diagonals.slot;
    for (int32_t s = 0; s < states; ++s) {
      if (begin[s] == begin[s + 1]) slot_of[s] = none;
    }
    for (const int32_t s : diagonals.odd_in) {
      slot_of[s] = none;
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) slot_of.push_back(graph.list(kInSlot)[i]);
    }
    const auto items = static_cast<int32_t>(slot_of.size());
    std::vector<int32_t> first(static_cast<size_t>(none) + 2), order(slot_of.size());
    sort_arcs(slot_of.data(), items, first.data(), none + 1,
              [&](int32_t where, int32_t item) { order[item] = where; });
    slots.emplace(none + 1, first.data());
    for (int32_t item = 0; item < items; ++item) place.push_back(slots->place[order[item]]);
  }
};

}  // namespace nativeops::tuned
