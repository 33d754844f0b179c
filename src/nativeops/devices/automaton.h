// SPDX-License-Identifier: Apache-2.0
// A batch of automata, given as one list of edges, and per sequence the index that its kernels walk
// on: states numbered anew, edges by the state they lead to and by the one they leave, and the
// classes that they emit. It is made once a call, in the order of the list, so that sums and ties
// do not depend on the device.
#pragma once
#include <cstdint>
#include <vector>

#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/scaled.h"

namespace nativeops {

// What an op gets. `end_states` has rows of sequences and states.
template <class T>
struct Automata {
  In<int32_t, 2> edges;             // (from, to, class, sequence), e
  In<T, 1> weights;                 // e
  In<int32_t, 2> start_end_states;  // (start, end), b
  In<int32_t, 2> end_states;        // (sequence, state), m; of a sequence without any `end`
  In<T, 1> end_weights;             // m
  int64_t classes;
  Accum<T> least = -Scale<Accum<T>>::largest;  // no cost is below it

  HOST_DEVICE int64_t size() const { return weights.size(0); }
  HOST_DEVICE int64_t batch() const { return start_end_states.size(1); }
  HOST_DEVICE int64_t ends() const { return end_states ? end_states.size(1) : 0; }
  HOST_DEVICE Accum<T> end_cost(int64_t i) const {
    return end_weights ? Accum<T>(end_weights(i)) : Accum<T>(0);
  }
};

template <class T>
void check_automata(const Automata<T>& a, const char* scores) {
  if constexpr (kHostReads) {
    const std::string classes = std::string("the classes of `") + scores + "`";
    const auto check = [](const In<int32_t, 2>& array, const char* name, int row, int64_t i,
                          int64_t most, const char* of) {
      const int64_t value = array(row, i);
      if (value >= 0 && value <= most) return;
      refuse(element(name, row, i), value, 0, most, of);
    };
    for (int64_t e = 0; e < a.size(); ++e) {
      if (a.batch() == 0 || Accum<T>(a.weights(e)) == highest<Accum<T>>()) continue;
      check(a.edges, "edges", 0, e, INT32_MAX, "a state");
      check(a.edges, "edges", 1, e, INT32_MAX, "a state");
      check(a.edges, "edges", 2, e, a.classes - 1, classes.c_str());
      check(a.edges, "edges", 3, e, a.batch() - 1, "a sequence of the batch");
    }
    for (int64_t b = 0; b < a.batch(); ++b) {
      check(a.start_end_states, "start_end_states", 0, b, INT32_MAX, "a state");
      check(a.start_end_states, "start_end_states", 1, b, INT32_MAX, "a state");
    }
    for (int64_t i = 0; i < a.ends(); ++i) {
      const bool dead = a.end_cost(i) == highest<Accum<T>>();
      if (dead || a.batch() == 0) continue;
      check(a.end_states, "end_states", 0, i, a.batch() - 1, "a sequence of the batch");
      check(a.end_states, "end_states", 1, i, INT32_MAX, "a state");
    }
  }
}

// Groups of equal keys: the numbers from 0 to n - 1 in the order of their keys, those with equal
// keys in their own, and where each key begins. Lists that come in this order already, as most do,
// take all threads; others one.
template <class F>
KERNEL void group(Team team, int64_t n, int64_t keys, F key, int64_t* begin, int64_t* order) {
  const bool unordered = team.any(1, n, [=](int64_t i) { return key(i) < key(i - 1); });
  if (!unordered) {
    team.each(0, n + 1, [=](int64_t i) {
      if (i < n) order[i] = i;
      const int64_t first = i == 0 ? 0 : key(i - 1) + 1, last = i == n ? keys : key(i);
      for (int64_t k = first; k <= last; ++k) begin[k] = i;
    });
  } else if (team.rank() == 0) {
    for (int64_t k = 0; k <= keys; ++k) begin[k] = 0;
    for (int64_t i = 0; i < n; ++i) ++begin[key(i) + 1];
    for (int64_t k = 0; k < keys; ++k) begin[k + 1] += begin[k];
    for (int64_t i = 0; i < n; ++i) order[begin[key(i)]++] = i;
    for (int64_t k = keys; k > 0; --k) begin[k] = begin[k - 1];
    begin[0] = 0;
  }
  team.sync();
}

// Lists of an index.
enum Ints : int {
  kStates,
  kClasses,
  kEdge,
  kFrom,
  kTo,
  kSlot,  // found in the list of edges
  kInBegin,
  kInFrom,
  kInSlot,
  kInEdge,  // by the state that an edge leads to
  kOutBegin,
  kOutTo,
  kOutSlot,
  kOutPlace,  // by the state that it leaves
  kSlotBegin,
  kPlaceEdge,
  kCount,
  kTableA,
  kTableB,
  kTableC,
  kTableD,
  kInts
};  // clang-format keeps no groups
enum Numbers : int {
  kInWeight,
  kOutWeight,
  kEnd,
  kEmitted,
  kGamma,
  kTaken,
  kBeta,
  kBetaNext,
  kSum,
  kNumbers
};
// In kCount: also whether some weight is no cost, and, where there are arcs, the class that has
// most of them.
constexpr int kNStates = 0, kNSlots = 1, kSick = 2, kWide = 3;
constexpr int64_t kExtra = 3;  // lists of a sequence are longer than its edges by that

template <class A>
struct Row {
  A* m;
  Exponent<A>* k;
  HOST_DEVICE Scaled<A> operator[](int64_t i) const { return {m[i], k[i]}; }
  HOST_DEVICE void set(int64_t i, Scaled<A> value) const {
    m[i] = value.m;
    k[i] = value.k;
  }
};

// The index of one sequence.
template <class A>
struct Graph {
  int32_t* ints;
  A* m;
  Exponent<A>* k;
  int64_t width, base, capacity;  // of all lists of one kind; where this sequence's are; their size
  const int64_t *end_begin, *end_place;  // of all sequences in the list of end states, by sequence

  HOST_DEVICE int32_t* list(Ints which) const { return ints + which * width + base; }
  HOST_DEVICE Row<A> row(Numbers which) const {
    return {m + which * width + base, k + which * width + base};
  }
  HOST_DEVICE int32_t states() const { return list(kCount)[kNStates]; }
  HOST_DEVICE int32_t slots() const { return list(kCount)[kNSlots]; }
  HOST_DEVICE bool sick() const { return list(kCount)[kSick] != 0; }
  // A class with so many arcs that all threads should add them; -1 if there is none.
  HOST_DEVICE int64_t wide_slot() const {
    if (slots() == 0) return -1;
    const int32_t slot = list(kCount)[kWide], *const first = list(kSlotBegin);
    return first[slot + 1] - first[slot] > 64 ? slot : -1;
  }

  // The position of a value in a list of different ones, by a table twice as long; -1 if it is not
  // there, or, where it may be added, its new place.
  HOST_DEVICE int32_t find(Ints table, Ints values, int32_t& count, int32_t value, bool add) const {
    int32_t* const places = ints + table * width + 2 * base;  // this table and the next
    const uint64_t size = static_cast<uint64_t>(2 * capacity);
    // The upper bits of the product depend on all bits of the value, whatever its factors are.
    const auto mixed = static_cast<uint32_t>(static_cast<uint32_t>(value) * 2654435761u);
    for (uint64_t at = mixed * size >> 32;; at = at + 1 == size ? 0 : at + 1) {
      const int32_t place = places[at];
      if (place >= 0 && list(values)[place] == value) return place;
      if (place >= 0) continue;
      if (!add) return -1;
      list(values)[count] = value;
      return places[at] = count++;
    }
  }
};

// Whether some weight is no number, or some class that the automaton emits had no cost in a frame.
template <class A>
KERNEL bool is_sick(Team team, const Graph<A>& graph) {
  const Row<A> seen = graph.row(kSum);
  return graph.sick() || team.any(0, graph.slots(), [=](int64_t s) { return seen.m[s] != 0; });
}

// Sorts `n` arcs by `key`; put(place, arc) writes them.
template <class F>
HOST_DEVICE void sort_arcs(const int32_t* key, int32_t n, int32_t* begin, int32_t keys, F put) {
  for (int32_t i = 0; i <= keys; ++i) begin[i] = 0;
  for (int32_t i = 0; i < n; ++i) ++begin[key[i] + 1];
  for (int32_t i = 0; i < keys; ++i) begin[i + 1] += begin[i];
  for (int32_t i = 0; i < n; ++i) put(begin[key[i]]++, i);
  for (int32_t i = keys; i > 0; --i) begin[i] = begin[i - 1];
  begin[0] = 0;
}

// Finds the arcs that a path can take: those of finite weight from a state that is the start or
// that another one leads to. The start is state 0.
template <class T, class A>
HOST_DEVICE int32_t collect(const Automata<T>& a, const Graph<A>& g, int64_t b,
                            const int64_t* edges, int64_t n) {
  int32_t states = 0, slots = 0, arcs = 0;
  g.list(kCount)[kSick] = 0;
  for (int64_t i = 0; i < 2 * g.capacity; ++i) {
    (g.ints + kTableA * g.width + 2 * g.base)[i] = (g.ints + kTableC * g.width + 2 * g.base)[i] =
        -1;
  }
  g.find(kTableA, kStates, states, a.start_end_states(0, b), true);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t e = edges[i];
    if (!(A(a.weights(e)) >= a.least)) g.list(kCount)[kSick] = 1;
    if (A(a.weights(e)) < highest<A>()) g.find(kTableA, kStates, states, a.edges(1, e), true);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t e = edges[i];
    const int32_t c = a.edges(2, e), from = g.find(kTableA, kStates, states, a.edges(0, e), false);
    if (from < 0 || c < 0 || c >= a.classes || !(A(a.weights(e)) < highest<A>())) continue;
    g.list(kEdge)[arcs] = static_cast<int32_t>(e);
    g.list(kFrom)[arcs] = from;
    g.list(kTo)[arcs] = g.find(kTableA, kStates, states, a.edges(1, e), false);
    g.list(kSlot)[arcs++] = g.find(kTableC, kClasses, slots, c, true);
  }
  g.list(kCount)[kNStates] = states;
  g.list(kCount)[kNSlots] = slots;
  return arcs;
}

// f(state, cost) for each end state of a sequence, in the order of the list: those that are given,
// or else that of `start_end_states`.
template <class T, class A, class F>
HOST_DEVICE void for_ends(const Automata<T>& a, const Graph<A>& g, int64_t b, F f) {
  bool any = false;
  for (int64_t k = g.end_begin[b]; k < g.end_begin[b + 1]; ++k) {
    const int64_t i = g.end_place[k];
    if (a.end_states(0, i) != b) continue;  // one that never counts, of no sequence
    f(a.end_states(1, i), a.end_cost(i));
    any = true;
  }
  if (!any) f(a.start_end_states(1, b), A(0));
}

template <class T, class A>
HOST_DEVICE void index_ends(const Automata<T>& a, const Graph<A>& g, int64_t b) {
  int32_t states = g.states();
  const Row<A> end = g.row(kEnd);
  for (int32_t s = 0; s < states; ++s) end.set(s, {A(0), Scale<A>::none});
  for_ends(a, g, b, [&](int32_t state, A cost) {
    const int32_t s = g.find(kTableA, kStates, states, state, false);
    const Scaled<A> more = scaled_exp(cost);
    if (!(cost >= a.least)) g.list(kCount)[kSick] = 1;
    if (s < 0) return;
    const Scaled<A> before = end[s];
    end.set(s, scaled_sum<A>(0, 2, [=](int64_t j) { return j == 0 ? before : more; }));
  });
}

template <class T, class A>
HOST_DEVICE void index_arcs(const Automata<T>& a, const Graph<A>& g, int32_t n) {
  const int32_t states = g.states();
  int32_t* const edge = g.list(kEdge);
  // The places by class, of arc i, where the table of the classes was.
  int32_t* const place = g.ints + kTableC * g.width + 2 * g.base;
  sort_arcs(g.list(kSlot), n, g.list(kSlotBegin), g.slots(), [=](int32_t at, int32_t i) {
    place[i] = at;
    g.list(kPlaceEdge)[at] = edge[i];
  });
  const int32_t* const first = g.list(kSlotBegin);
  int32_t wide = 0;
  for (int32_t s = 1; s < g.slots(); ++s) {
    if (first[s + 1] - first[s] > first[wide + 1] - first[wide]) wide = s;
  }
  if (n > 0) g.list(kCount)[kWide] = wide;
  const Row<A> out = g.row(kOutWeight), in = g.row(kInWeight);
  sort_arcs(g.list(kFrom), n, g.list(kOutBegin), states, [=, &a](int32_t at, int32_t i) {
    g.list(kOutTo)[at] = g.list(kTo)[i];
    g.list(kOutSlot)[at] = g.list(kSlot)[i];
    g.list(kOutPlace)[at] = place[i];
    out.set(at, scaled_exp(A(a.weights(edge[i]))));
  });
  sort_arcs(g.list(kTo), n, g.list(kInBegin), states, [=, &a](int32_t at, int32_t i) {
    g.list(kInEdge)[at] = edge[i];
    g.list(kInFrom)[at] = g.list(kFrom)[i];
    g.list(kInSlot)[at] = g.list(kSlot)[i];
    in.set(at, scaled_exp(A(a.weights(edge[i]))));
  });
}

// f(i, state) for each of the end states of a sequence that are given; -1 for one that no edge
// leads to.
template <class T, class A, class F>
KERNEL void each_end(Team team, const Automata<T>& all, const Graph<A>& g, int64_t b, F f) {
  const Automata<T> a = all;
  const Graph<A> graph = g;
  team.each(g.end_begin[b], g.end_begin[b + 1], [=](int64_t k) {
    const int64_t i = graph.end_place[k];
    int32_t none = 0;
    if (a.end_states(0, i) != b) return;
    f(i, graph.find(kTableA, kStates, none, a.end_states(1, i), false));
  });
}

// The indices of all sequences, and where each has its edges.
template <class T>
class Index {
 public:
  using A = Accum<T>;

  Index(Device& dev, const Automata<T>& automata)
      : width(automata.size() + kExtra * automata.batch()),
        order_(dev.template workspace<int64_t>(automata.size() + automata.ends() +
                                               2 * (automata.batch() + 1))),
        ints_(dev.template workspace<int32_t>(kInts * width)),
        m_(dev.template workspace<A>(kNumbers * width)),
        k_(dev.template workspace<Exponent<A>>(kNumbers * width)),
        begin_(order_.data()),
        edges_(begin_ + automata.batch() + 1),
        end_begin_(edges_ + automata.size()),
        end_place_(end_begin_ + automata.batch() + 1) {}

  const int64_t width;
  HOST_DEVICE int64_t* begin() const { return begin_; }
  HOST_DEVICE int64_t* edges() const { return edges_; }
  HOST_DEVICE int64_t* end_begin() const { return end_begin_; }
  HOST_DEVICE int64_t* end_place() const { return end_place_; }
  Graph<A> all() const {
    return {ints_.data(), m_.data(), k_.data(), width, 0, 0, end_begin_, end_place_};
  }

 private:
  Workspace<int64_t> order_;
  Workspace<int32_t> ints_;
  Workspace<A> m_;
  Workspace<Exponent<A>> k_;
  int64_t *begin_, *edges_, *end_begin_, *end_place_;
};

template <class A>
HOST_DEVICE Graph<A> graph_of(const Graph<A>& all, const int64_t* begin, int64_t b) {
  Graph<A> g = all;
  g.base = begin[b] + kExtra * b;
  g.capacity = begin[b + 1] - begin[b] + kExtra;
  return g;
}

template <class T>
void make_index(Device& dev, const Automata<T>& a, const Index<T>& index) {
  using A = Accum<T>;
  int64_t *const begin = index.begin(), *const edges = index.edges();
  int64_t *const end_begin = index.end_begin(), *const end_place = index.end_place();
  for_each_item(dev, 2, [=] KERNEL(Team team, int64_t list) {
    const auto sequence = [=](int64_t of) { return within(of, a.batch() - 1); };
    if (list == 0) {
      const auto of_edge = [=](int64_t e) { return sequence(a.edges(3, e)); };
      group(team, a.size(), a.batch(), of_edge, begin, edges);
    } else {
      const auto of_end = [=](int64_t i) { return sequence(a.end_states(0, i)); };
      group(team, a.ends(), a.batch(), of_end, end_begin, end_place);
    }
  });
  const Graph<A> all = index.all();
  for_each_item(dev, a.batch(), [=] KERNEL(Team team, int64_t b) {
    const Graph<A> g = graph_of(all, begin, b);
    if (team.rank() > 0) return;
    const int32_t arcs = collect(a, g, b, edges + begin[b], begin[b + 1] - begin[b]);
    index_ends(a, g, b);
    index_arcs(a, g, arcs);
  });
}

}  // namespace nativeops
