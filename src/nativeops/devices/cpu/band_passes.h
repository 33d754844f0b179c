// SPDX-License-Identifier: Apache-2.0
// The passes of forward_backward.h for automata whose arcs lead a few states further, as those of
// CTC and of HMMs do: arcs of one length are a diagonal of a matrix, and a row of states is
// multiplied with it by vectors, without an index (the diagonal format of Saad 1989). The few arcs
// that do not fit are added up one by one, and automata with many of them walk as in
// cpu/forward_backward.h.
#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "nativeops/devices/cpu/forward_backward.h"

namespace nativeops::tuned {

constexpr int32_t kDiagonals = 4;  // at most
constexpr int32_t kFar = 16;       // states that an arc of a diagonal leads further, at most

// What kind of arcs an automaton has.
template <class A>
struct Diagonals {
  std::vector<int32_t> ahead;            // how many states further the arcs of each one lead
  std::vector<Numbered<A>> in, out;      // their weights, by the state led to and by the one left
  std::vector<int32_t> slot;             // of each state: what all arcs to it emit
  std::vector<int32_t> odd_in, odd_out;  // states that other arcs lead to, and that such ones leave

  explicit Diagonals(const Graph<A>& g) : slot(static_cast<size_t>(g.states())) {
    const int32_t states = g.states(), *const begin = g.list(kInBegin),
                  *const from = g.list(kInFrom);
    const int32_t* const slots = g.list(kInSlot);
    for (int32_t s = 0; s < states; ++s) slot[s] = begin[s] < begin[s + 1] ? slots[begin[s]] : 0;
    ahead = frequent(states, begin, from);
    in.assign(ahead.size(), Numbered<A>(static_cast<size_t>(states)));
    out = in;
    std::vector<bool> to_odd(static_cast<size_t>(states)), from_odd(to_odd);
    for (int32_t s = 0; s < states; ++s) {
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        const auto which = std::find(ahead.begin(), ahead.end(), s - from[i]) - ahead.begin();
        const bool fits = which < static_cast<int64_t>(ahead.size()) && slots[i] == slot[s] &&
                          in[which].m[s] == 0;
        if (fits) {
          in[which].row().set(s, g.row(kInWeight)[i]);
          out[which].row().set(from[i], g.row(kInWeight)[i]);
        } else {
          to_odd[s] = from_odd[from[i]] = true;
        }
      }
    }
    for (int32_t s = 0; s < states; ++s) {
      if (to_odd[s]) odd_in.push_back(s);
      if (from_odd[s]) odd_out.push_back(s);
    }
  }

  // Whether most of the work is that of the diagonals.
  bool fit() const {
    return !ahead.empty() && 8 * std::max(odd_in.size(), odd_out.size()) <= slot.size() + 16;
  }

 private:
  // The lengths of arcs that an eighth of the states has, the shortest first.
  static std::vector<int32_t> frequent(int32_t states, const int32_t* begin, const int32_t* from) {
    std::map<int32_t, int32_t> count;
    for (int32_t s = 0; s < states; ++s) {
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        if (std::abs(s - from[i]) <= kFar) ++count[s - from[i]];
      }
    }
    std::vector<int32_t> lengths;
    for (const auto& [length, times] : count) {
      if (8 * times >= states) lengths.push_back(length);
    }
    std::stable_sort(lengths.begin(), lengths.end(),
                     [&](int32_t a, int32_t b) { return count[a] > count[b]; });
    lengths.resize(std::min<size_t>(lengths.size(), kDiagonals));
    std::sort(lengths.begin(), lengths.end());
    return lengths;
  }
};

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

  mutable Diagonals<A> diagonals;
  std::optional<VectorPasses<T>> general;  // where arcs are of other kinds
  mutable std::optional<Slots<A>> slots;
  std::vector<int32_t> place;  // in the rows of slots, of each state, then of each arc of odd ones
  mutable Padded<A> around;

  BandPasses(const Graph<A>& g, const Costs<T>& costs, const History<A>& history)
      : Passes<T>{g, costs, history}, diagonals(g), around(g.states()) {
    if (diagonals.fit()) {
      place_items();
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
    by_diagonals(-1, diagonals.in, [=](int32_t s, Scaled<A> sum) __attribute__((always_inline)) {
      next.set(s, normalised(sum * emitted[said[s]]));
    });
    for (const int32_t s : diagonals.odd_in) next.set(s, this->arriving(s, before));
  }

  void step_back(Team team, int64_t t, int64_t b, Row<A> beta, Row<A> next) const {
    if (general) return general->step_back(team, t, b, beta, next);
    this->emit(team, t, b);
    const Row<A> emitted = graph.row(kEmitted), all = around.row();
    const int32_t states = graph.states(), *const said = diagonals.slot.data();
    NATIVEOPS_IVDEP
    for (int32_t s = 0; s < states; ++s) all.set(s, normalised(beta[s] * emitted[said[s]]));
    by_diagonals(1, diagonals.out, [=](int32_t s, Scaled<A> sum) __attribute__((always_inline)) {
      next.set(s, normalised(sum));
    });
    const int32_t* const begin = graph.list(kOutBegin);
    for (const int32_t s : diagonals.odd_out) {
      next.set(s, scaled_sum<A>(begin[s], begin[s + 1],
                                [=](int64_t i) { return this->leaving(i, beta); }));
    }
    pass_through(t, beta);
    slots->sums(slots->items.row(), graph.row(kSum));
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
    switch (diagonals.ahead.size()) {
      case 1:
        return of(std::integral_constant<int, 1>{});
      case 2:
        return of(std::integral_constant<int, 2>{});
      case 3:
        return of(std::integral_constant<int, 3>{});
      default:
        return of(std::integral_constant<int, kDiagonals>{});
    }
  }

  // The sums of all paths through each state or, where arcs of several classes lead to it, through
  // each of these.
  [[gnu::flatten]] void pass_through(int64_t t, Row<A> beta) const {
    const Row<A> before = this->history.in_part(t, graph.base), after = this->after(t + 1);
    const Row<A> items = slots->items.row(), emitted = graph.row(kEmitted);
    const int32_t states = graph.states(), *const at = place.data();
    NATIVEOPS_IVDEP
    for (int32_t s = 0; s < states; ++s) {
      items.m[at[s]] = after.m[s] * beta.m[s];
      items.k[at[s]] = max2(after.k[s] + beta.k[s], Scale<A>::none);
    }
    const int32_t *const begin = graph.list(kInBegin), *const from = graph.list(kInFrom);
    const int32_t *next = at + states, *const slot = graph.list(kInSlot);
    const Row<A> weight = graph.row(kInWeight);
    for (const int32_t s : diagonals.odd_in) {
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        const Scaled<A> one = normalised(before[from[i]] * weight[i]);
        const Scaled<A> all = one * normalised(emitted[slot[i]] * beta[s]);
        items.set(*next++, {all.m, max2(all.k, Scale<A>::none)});
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
