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

// Arcs by the state they lead to, or by the one they leave.
template <class A>
struct Arcs {
  Jagged by;
  std::vector<int32_t> other, slot;
  Numbered<A> weight, product, sum;

  Arcs(int32_t states, const int32_t* begin, const int32_t* others, const int32_t* slots, Row<A> w)
      : by(states, begin),
        other(by.source.size()),
        slot(by.source.size()),
        weight(by.source.size()),
        product(by.source.size()),
        sum(static_cast<size_t>(states)) {
    for (size_t i = 0; i < by.source.size(); ++i) {
      other[i] = others[by.source[i]];
      slot[i] = slots[by.source[i]];
      weight.row().set(static_cast<int64_t>(i), w[by.source[i]]);
    }
  }

  // to[state] = Σ over its arcs of from[other] · emitted[slot] · weight
  [[gnu::flatten]] void pass(Row<A> from, Row<A> emitted, Row<A> to) {
    const int32_t n = static_cast<int32_t>(other.size()), *o = other.data(), *s = slot.data();
    const Row<A> w = weight.row(), p = product.row();
    NATIVEOPS_IVDEP
    for (int32_t i = 0; i < n; ++i) {
      p.m[i] = from.m[o[i]] * emitted.m[s[i]] * w.m[i];
      p.k[i] = max2(from.k[o[i]] + emitted.k[s[i]] + w.k[i], Scale<A>::none);
    }
    line_sums(by, p, sum.row());
    const Row<A> sums = sum.row();
    const int32_t *const state = by.row.data(), rows = by.rows();
    NATIVEOPS_IVDEP
    for (int32_t r = 0; r < rows; ++r) to.set(state[r], sums[r]);
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
      first.push_back(first.back() + (begin[s + 1] - begin[s] + kPiece - 1) / kPiece);
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

  mutable Arcs<A> in, out;
  mutable Slots<A> slots;
  std::vector<int32_t> place;  // in the rows of slots, of each of `out`
  mutable Numbered<A> own;

  VectorPasses(const Graph<A>& g, const Costs<T>& costs, const History<A>& history)
      : Passes<T>{g, costs, history},
        in(g.states(), g.list(kInBegin), g.list(kInFrom), g.list(kInSlot), g.row(kInWeight)),
        out(g.states(), g.list(kOutBegin), g.list(kOutTo), g.list(kOutSlot), g.row(kOutWeight)),
        slots(g.slots(), g.list(kSlotBegin)),
        place(out.other.size()),
        own(static_cast<size_t>(g.states())) {
    for (size_t i = 0; i < place.size(); ++i) {
      place[i] = slots.place[g.list(kOutPlace)[out.by.source[i]]];
    }
    const std::vector<int32_t> edges(g.list(kPlaceEdge), g.list(kPlaceEdge) + place.size());
    for (size_t i = 0; i < place.size(); ++i) g.list(kPlaceEdge)[slots.place[i]] = edges[i];
  }

  void forward(Team team, int64_t t, int64_t b, Row<A> before, Row<A> next) const {
    this->emit(team, t, b);
    in.pass(before, graph.row(kEmitted), next);
  }
  [[gnu::flatten]] void step_back(Team team, int64_t t, int64_t b, Row<A> beta, Row<A> next) const {
    this->emit(team, t, b);
    out.pass(beta, graph.row(kEmitted), next);
    const Row<A> alpha = this->history.in_part(t, graph.base), gamma = graph.row(kGamma);
    const Row<A> mine = own.row(), p = out.product.row();
    const Jagged& by = out.by;
    for (int32_t r = 0; r < by.rows(); ++r) mine.set(r, alpha[by.row[r]]);
    for (int32_t d = 0; d < by.columns(); ++d) {
      const int32_t low = by.column[d],
                    count = by.column[d + 1] - low, *const at = place.data() + low;
      NATIVEOPS_IVDEP
      for (int32_t r = 0; r < count; ++r) {
        gamma.m[at[r]] = mine.m[r] * p.m[low + r];
        gamma.k[at[r]] = max2(mine.k[r] + p.k[low + r], Scale<A>::none);
      }
    }
    slots.sums(gamma, graph.row(kSum));
  }
};

}  // namespace nativeops::tuned
