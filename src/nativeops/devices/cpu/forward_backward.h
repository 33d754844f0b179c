// SPDX-License-Identifier: Apache-2.0
// The passes of forward_backward.h with vectors: arcs are laid out so that the first ones of all
// states are neighbours, then all second ones, and so on (jagged diagonals; Saad 1989, Krylov
// subspace methods on supercomputers). Sums over the arcs of a state are then loops over states.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "nativeops/devices/forward_backward.h"

namespace nativeops::tuned {

// Rows of different lengths, the longest first, stored by columns.
struct Jagged {
  std::vector<int32_t> row;     // which one is in which line
  std::vector<int32_t> column;  // where each column begins, and the end
  std::vector<int32_t> source;  // of each place, the number that its item had before

  Jagged(int32_t rows, const int32_t* begin) : row(static_cast<size_t>(rows)) {
    const auto length = [=](int32_t r) { return begin[r + 1] - begin[r]; };
    std::iota(row.begin(), row.end(), 0);
    std::stable_sort(row.begin(), row.end(),
                     [=](int32_t a, int32_t b) { return length(a) > length(b); });
    column.push_back(0);
    const int32_t most = rows > 0 ? length(row[0]) : 0;
    for (int32_t d = 0; d < most; ++d) {
      for (const int32_t r : row) {
        if (length(r) <= d) break;
        source.push_back(begin[r] + d);
      }
      column.push_back(static_cast<int32_t>(source.size()));
    }
  }
  int32_t rows() const { return static_cast<int32_t>(row.size()); }
  int32_t columns() const { return static_cast<int32_t>(column.size()) - 1; }
};

// Scaled numbers of its own.
template <class A>
struct Numbered {
  std::vector<A> m;
  std::vector<Exponent<A>> k;
  explicit Numbered(size_t n) : m(n, A(0)), k(n, Scale<A>::none) {}
  Row<A> row() { return {m.data(), k.data()}; }
};

// to[line] = Σ of the line's items
template <class A>
[[gnu::flatten]] void line_sums(const Jagged& j, Row<A> items, Row<A> to) {
  using K = Exponent<A>;
  const int32_t rows = j.rows();
  for (int32_t r = 0; r < rows; ++r) to.k[r] = Scale<A>::none, to.m[r] = 0;
  for (int32_t d = 0; d < j.columns(); ++d) {
    const int32_t count = j.column[d + 1] - j.column[d];
    const K* const k = items.k + j.column[d];
    NATIVEOPS_IVDEP
    for (int32_t r = 0; r < count; ++r) to.k[r] = max2(to.k[r], k[r]);
  }
  for (int32_t d = 0; d < j.columns(); ++d) {
    const int32_t count = j.column[d + 1] - j.column[d];
    const K* const k = items.k + j.column[d];
    const A* const m = items.m + j.column[d];
    NATIVEOPS_IVDEP
    for (int32_t r = 0; r < count; ++r) to.m[r] += m[r] * power_of<A>(k[r] - to.k[r]);
  }
  NATIVEOPS_IVDEP
  for (int32_t r = 0; r < rows; ++r) to.set(r, normalised<A>(to[r]));
}

// The arcs that lead to one state with one class: what comes after them is the same.
struct Bundles {
  std::vector<int32_t> begin{0}, state, slot;  // of each bundle, in the order of states
  std::vector<int32_t> arc;                    // in the order of bundles, by the state they lead to
  std::vector<int32_t> joint;                  // states with several of them
  std::vector<int32_t> first;                  // bundle of each state, and the end

  Bundles(int32_t states, const int32_t* in_begin, const int32_t* slots)
      : arc(static_cast<size_t>(in_begin[states])) {
    std::iota(arc.begin(), arc.end(), 0);
    for (int32_t s = 0; s < states; ++s) {
      first.push_back(size());
      const int32_t low = in_begin[s], high = in_begin[s + 1];
      std::stable_sort(arc.begin() + low, arc.begin() + high,
                       [=](int32_t a, int32_t b) { return slots[a] < slots[b]; });
      for (int32_t i = low; i < high; ++i) {
        if (i > low && slots[arc[i]] == slots[arc[i - 1]]) {
          ++begin.back();
          continue;
        }
        state.push_back(s);
        slot.push_back(slots[arc[i]]);
        begin.push_back(i + 1);
      }
      if (size() > first.back() + 1) joint.push_back(s);
    }
    first.push_back(size());
  }
  int32_t size() const { return static_cast<int32_t>(state.size()); }
  // The bundle of a state with that slot.
  int32_t find(int32_t s, int32_t wanted) const {
    const auto low = slot.begin() + first[s], high = slot.begin() + first[s + 1];
    return static_cast<int32_t>(std::lower_bound(low, high, wanted) - slot.begin());
  }
};

// Sums over arcs, of what is at their other ends times their weights.
template <class A>
struct Arcs {
  Jagged by;
  std::vector<int32_t> other;
  Numbered<A> weight, product, sum;

  Arcs(int32_t rows, const int32_t* begin)
      : by(rows, begin),
        other(by.source.size()),
        weight(by.source.size()),
        product(by.source.size()),
        sum(static_cast<size_t>(rows)) {}

  // sum[line] = Σ over its arcs of from[other] · weight
  [[gnu::flatten]] void add_up(Row<A> from) {
    const int32_t n = static_cast<int32_t>(other.size()), *o = other.data();
    const Row<A> w = weight.row(), p = product.row();
    NATIVEOPS_IVDEP
    for (int32_t i = 0; i < n; ++i) {
      p.m[i] = from.m[o[i]] * w.m[i];
      p.k[i] = max2(from.k[o[i]] + w.k[i], Scale<A>::none);
    }
    line_sums(by, p, sum.row());
  }
};

// Slots have from one arc to as many as there are states, so each is cut into pieces.
template <class A>
struct Slots {
  static constexpr int32_t kPiece = 4;
  std::vector<int32_t> first;  // piece of each slot, and the end
  Jagged by;
  std::vector<int32_t> line;   // of each piece
  std::vector<int32_t> place;  // of each arc in the order of slots
  Numbered<A> items, sum;

  Slots(int32_t slots, const int32_t* begin)
      : first(pieces_of(slots, begin)),
        by(first.back(), cuts_of(slots, begin).data()),
        line(by.row.size()),
        place(by.source.size()),
        items(by.source.size()),
        sum(by.row.size()) {
    for (int32_t r = 0; r < by.rows(); ++r) line[by.row[r]] = r;
    for (size_t i = 0; i < place.size(); ++i) place[by.source[i]] = static_cast<int32_t>(i);
  }
  static std::vector<int32_t> pieces_of(int32_t slots, const int32_t* begin) {
    std::vector<int32_t> first{0};
    for (int32_t s = 0; s < slots; ++s) {
      first.push_back(first.back() + ceil_div(begin[s + 1] - begin[s], kPiece));
    }
    return first;
  }
  static std::vector<int32_t> cuts_of(int32_t slots, const int32_t* begin) {
    std::vector<int32_t> cuts;
    for (int32_t s = 0; s < slots; ++s) {
      for (int32_t i = begin[s]; i < begin[s + 1]; i += kPiece) cuts.push_back(i);
    }
    cuts.push_back(begin[slots]);
    return cuts;
  }
  void sums(Row<A> gamma, Row<A> to) {
    line_sums(by, gamma, sum.row());
    const Row<A> pieces = sum.row();
    for (size_t s = 0; s + 1 < first.size(); ++s) {
      const int32_t low = first[s], high = first[s + 1];
      to.set(static_cast<int64_t>(s),
             high == low + 1 ? pieces[line[low]] : scaled_sum<A>(low, high, [&](int64_t i) {
               return pieces[line[i]];
             }));
    }
  }
};

template <class T>
struct VectorPasses : Passes<T> {
  using A = Accum<T>;
  using Passes<T>::graph;

  const Bundles bundles;
  mutable Arcs<A> in, out;           // by bundle, from states; by state, to bundles
  std::vector<int32_t> slot, state;  // of each line of `in`
  mutable Slots<A> slots;
  std::vector<int32_t> place;  // in the rows of slots, of each of `out`
  std::vector<int32_t> edges;  // of each of these places
  mutable Numbered<A> own, ahead;

  VectorPasses(const Graph<A>& g, const Costs<T>& costs, const History<A>& history)
      : Passes<T>{g, costs, history},
        bundles(g.states(), g.list(kInBegin), g.list(kInSlot)),
        in(bundles.size(), bundles.begin.data()),
        out(g.states(), g.list(kOutBegin)),
        slots(g.slots(), g.list(kSlotBegin)),
        place(out.other.size()),
        own(static_cast<size_t>(g.states())),
        ahead(static_cast<size_t>(bundles.size())) {
    for (const int32_t bundle : in.by.row) {
      slot.push_back(bundles.slot[bundle]);
      state.push_back(bundles.state[bundle]);
    }
    for (size_t i = 0; i < in.other.size(); ++i) {
      const int32_t arc = bundles.arc[in.by.source[i]];
      in.other[i] = g.list(kInFrom)[arc];
      in.weight.row().set(static_cast<int64_t>(i), g.row(kInWeight)[arc]);
    }
    for (size_t i = 0; i < out.other.size(); ++i) {
      const int32_t arc = out.by.source[i];
      out.other[i] = bundles.find(g.list(kOutTo)[arc], g.list(kOutSlot)[arc]);
      out.weight.row().set(static_cast<int64_t>(i), g.row(kOutWeight)[arc]);
      place[i] = slots.place[g.list(kOutPlace)[arc]];
    }
    edges.resize(place.size());
    for (size_t i = 0; i < place.size(); ++i) edges[slots.place[i]] = g.list(kPlaceEdge)[i];
  }
  const int32_t* taken_edges() const { return edges.data(); }

  [[gnu::flatten]] void forward(Team team, int64_t t, int64_t b, Row<A> before, Row<A> next) const {
    this->emit(team, t, b);
    in.add_up(before);
    const Row<A> sums = in.sum.row(), emitted = graph.row(kEmitted);
    const int32_t *const s = slot.data(), *const to = state.data(), lines = in.by.rows();
    NATIVEOPS_IVDEP
    for (int32_t r = 0; r < lines; ++r) sums.set(r, normalised(sums[r] * emitted[s[r]]));
    for (int32_t i = 0; i < graph.states(); ++i) next.set(i, {A(0), Scale<A>::none});
    for (int32_t r = 0; r < lines; ++r) next.set(to[r], sums[r]);
    if (!bundles.joint.empty()) join(next);
  }
  // States that several bundles lead to.
  void join(Row<A> next) const {
    const Row<A> sums = in.sum.row(), parts = ahead.row();
    for (int32_t r = 0; r < in.by.rows(); ++r) parts.set(in.by.row[r], sums[r]);
    for (const int32_t s : bundles.joint) {
      next.set(s, scaled_sum<A>(bundles.first[s], bundles.first[s + 1],
                                [=](int64_t i) { return parts[i]; }));
    }
  }

  void step_back(Team team, int64_t t, int64_t b, Row<A> beta, Row<A> next) const {
    retreat(team, t, b, beta, next);
    pass_through(t);
    slots.sums(graph.row(kGamma), graph.row(kSum));
  }
  // The first half of it: `next` alone.
  [[gnu::flatten]] void retreat(Team team, int64_t t, int64_t b, Row<A> beta, Row<A> next) const {
    this->emit(team, t, b);
    const Row<A> emitted = graph.row(kEmitted), x = ahead.row(), sums = out.sum.row();
    const int32_t *const from = bundles.state.data(), *const said = bundles.slot.data();
    const int32_t count = bundles.size();
    NATIVEOPS_IVDEP
    for (int32_t i = 0; i < count; ++i) {
      x.set(i, normalised(beta[from[i]] * emitted[said[i]]));
    }
    out.add_up(x);
    const int32_t *const line = out.by.row.data(), states = out.by.rows();
    for (int32_t r = 0; r < states; ++r) next.set(line[r], sums[r]);
  }
  // kGamma of each arc: all before it, the arc, and all behind it.
  [[gnu::flatten]] void pass_through(int64_t t) const {
    const Row<A> alpha = this->history.before(t, graph.base), gamma = graph.row(kGamma);
    const Row<A> mine = own.row(), p = out.product.row();
    const Jagged& by = out.by;
    for (int32_t r = 0; r < by.rows(); ++r) mine.set(r, alpha[by.row[r]]);
    for (int32_t d = 0; d < by.columns(); ++d) {
      const int32_t low = by.column[d], count = by.column[d + 1] - low;
      const int32_t* const at = place.data() + low;
      NATIVEOPS_IVDEP
      for (int32_t r = 0; r < count; ++r) {
        gamma.m[at[r]] = mine.m[r] * p.m[low + r];
        gamma.k[at[r]] = max2(mine.k[r] + p.k[low + r], Scale<A>::none);
      }
    }
  }
};

}  // namespace nativeops::tuned
