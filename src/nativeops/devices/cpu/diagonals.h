// SPDX-License-Identifier: Apache-2.0
// Which arcs of an automaton are diagonals of its matrix: those of CTC and of HMMs lead a few
// states further, most of them equally many (the diagonal format of Saad 1989, Krylov subspace
// methods on supercomputers). A row of states is multiplied with a diagonal by vectors, without an
// index; the few arcs that do not fit are looked at one by one.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

#include "nativeops/devices/automaton.h"

namespace nativeops::tuned {

constexpr int32_t kDiagonals = 4;  // at most
constexpr int32_t kFar = 16;       // states that an arc of a diagonal leads further, at most

struct Diagonals {
  std::vector<int32_t> ahead;            // how many states further the arcs of each one lead
  std::vector<int32_t> of;               // of each arc, by the state led to; -1 if it does not fit
  std::vector<int32_t> slot;             // of each state: what the diagonals' arcs to it emit
  std::vector<int32_t> odd_in, odd_out;  // states that other arcs lead to, and that such ones leave

  template <class A>
  explicit Diagonals(const Graph<A>& g) : slot(static_cast<size_t>(g.states())) {
    const int32_t states = g.states(), *const begin = g.list(kInBegin),
                  *const from = g.list(kInFrom);
    const int32_t* const slots = g.list(kInSlot);
    ahead = frequent(states, begin, from);
    of.assign(static_cast<size_t>(begin[states]), -1);
    std::vector<bool> from_odd(static_cast<size_t>(states));
    for (int32_t s = 0; s < states; ++s) {
      if (begin[s] < begin[s + 1]) slot[s] = slots[begin[s]];
      unsigned taken = 0;  // a bit for each diagonal
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        const auto found = std::find(ahead.begin(), ahead.end(), s - from[i]);
        const auto which = static_cast<int32_t>(found - ahead.begin());
        if (which < count() && slots[i] == slot[s] && (taken >> which & 1) == 0) {
          taken |= 1u << which;
          of[i] = which;
        } else {
          if (odd_in.empty() || odd_in.back() != s) odd_in.push_back(s);
          from_odd[from[i]] = true;
        }
      }
    }
    for (int32_t s = 0; s < states; ++s) {
      if (from_odd[s]) odd_out.push_back(s);
    }
  }

  int32_t count() const { return static_cast<int32_t>(ahead.size()); }
  // Whether most of the work is that of the diagonals, both ways or forward alone.
  bool fit() const { return fit_forward() && are_few(odd_out); }
  bool fit_forward() const { return !ahead.empty() && are_few(odd_in); }

 private:
  bool are_few(const std::vector<int32_t>& odd) const { return 8 * odd.size() <= slot.size() + 16; }
  // The lengths of arcs that an eighth of the states has, the most frequent ones.
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

}  // namespace nativeops::tuned
