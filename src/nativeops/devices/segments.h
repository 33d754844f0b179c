// SPDX-License-Identifier: Apache-2.0
// The sums over all paths of automata whose edges say a class for several frames, a segment
// (Sarawagi & Cohen 2004; Zweig & Nguyen 2009). A sequence is the work of one team, its states that
// of the team's threads. What a segment is multiplied with, and what was reached in the last
// frames, are kept side by side for all lengths: the sum over them is one of vectors.
#pragma once
#include "nativeops/devices/forward_backward.h"

namespace nativeops {

// Asks for a number that is read soon; on a CPU its address may be beyond the array.
template <class T>
NATIVEOPS_INLINE void prefetch(const T* number) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(number));
#else
  __builtin_prefetch(number);
#endif
}

// e^-cost of each length, by model; one row more for edges without a model, whose segments are not.
template <class T>
void fill_lengths(Device& dev, In<T, 2> costs, int64_t most, int64_t models, int64_t room,
                  Row<Accum<T>> to) {
  using A = Accum<T>;
  for_each(dev, View<A, 1>{to.m, {(models + 1) * room}, {1}}, [=] KERNEL(int64_t j) {
    const int64_t k = j / room, i = j % room;
    const bool known = k < models && i < most;
    to.set(j, scaled_exp(!known ? highest<A>() : costs ? A(costs(k, i)) : A(0)));
  });
}

// The walk of one sequence over its frames. A row of a state, of an arc or of a class that its
// automaton has is behind those of the sequences before.
template <class T>
struct Segments {
  using A = Accum<T>;
  Graph<A> graph;
  In<T, 4> scores;
  In<T, 2> length_costs;
  In<int32_t, 1> length_models;
  int64_t room, models;
  Row<A> lengths, emitted;
  Row<A> ring;  // of each state: what was reached last, twice, so that it is never broken
  A* seen;      // whether some score was no cost

  // That of sequence b, where this one's graph is that of all.
  HOST_DEVICE Segments of(const int64_t* begin, int64_t b) const {
    Segments own = *this;
    own.graph = graph_of(graph, begin, b);
    return own;
  }
  HOST_DEVICE int64_t most() const { return scores.size(0); }
  HOST_DEVICE int64_t ring_size() const { return room + 1; }
  HOST_DEVICE int64_t arcs() const { return graph.list(kSlotBegin)[graph.slots()]; }
  HOST_DEVICE int64_t model(int64_t edge) const {
    const int64_t k = length_costs && length_models ? length_models(edge) : 0;
    return k >= 0 && k < models ? k : models;
  }
  // A sequence's rows of so many numbers.
  HOST_DEVICE Row<A> row(Row<A> all, int64_t i, int64_t size) const {
    return {all.m + (graph.base + i) * size, all.k + (graph.base + i) * size};
  }

  // Where in its ring a state keeps what it has come to after a step. Behind it is what it had come
  // to one step before, two, and so on.
  HOST_DEVICE int64_t place(int64_t step) const {
    return (ring_size() - step % ring_size()) % ring_size();
  }
  KERNEL Row<A> since(int64_t s, int64_t place) const {
    const Row<A> own = row(ring, s, 2 * ring_size());
    return {own.m + place, own.k + place};
  }
  KERNEL void reach(int64_t s, int64_t place, Scaled<A> value) const {
    const Row<A> own = since(s, place);
    own.set(0, value);
    own.set(ring_size(), value);
  }

  template <class F>
  KERNEL void start(Team team, F first) const {
    const Segments self = *this;
    const int64_t size = 2 * ring_size(), own = graph.base * size;
    team.each(0, graph.states() * size,
              [=](int64_t i) { self.ring.set(own + i, {A(0), Scale<A>::none}); });
    team.sync();
    team.each(0, graph.states(), [=](int64_t s) { self.reach(s, 0, first(s)); });
    team.sync();
  }

  // What segments are multiplied with: those of 1 to `count` frames, all of which begin in frame
  // `begin`, or end together, so that a longer one begins `earlier`. Longer ones count for nothing.
  // In memory each lies elsewhere, so those of the next step are asked for.
  KERNEL void emit(Team team, int64_t b, int64_t count, int64_t begin, bool earlier) const {
    const int64_t own = graph.base * room, all = graph.slots() * room;
    const int32_t* const classes = graph.list(kClasses);
    const Row<A> to{emitted.m + own, emitted.k + own};
    A* const bad = seen + own;
    const In<T, 4> scores = this->scores;
    const int64_t room = this->room, next = earlier ? scores.stride(1) : -scores.stride(1);
    const int64_t stride = scores.stride(0) - (earlier ? scores.stride(1) : 0);
    const T* const first = scores.data + begin * scores.stride(1) + b * scores.stride(2);
    const int64_t one = scores.stride(3), slots = graph.slots();
    if (Warp::size() == 1) {
      team.each(0, slots, [=](int64_t s) {
        const T* score = first + classes[s] * one;
        A* const mine = to.m + s * room;
        for (int64_t i = 0; i < count; ++i, score += stride) {
          prefetch(score + next);
          mine[i] = -A(*score);
        }
        for (int64_t i = count; i < room; ++i) mine[i] = highest<A>();
      });
    } else {  // neighbours read the classes of one length
      const bool more = earlier ? begin + 1 < scores.size(1) : begin > 0;
      team.each(0, all, [=](int64_t j) {
        const Divided place = divide(j, slots);
        const T* const score = first + classes[place.rest] * one + place.whole * stride;
        if (more && place.whole < count) prefetch(score + next);
        to.m[place.rest * room + place.whole] = place.whole < count ? -A(*score) : highest<A>();
      });
    }
    team.sync();
    team.each(0, all, [=](int64_t j) { bad[j] = max2(bad[j], is_cost(to.m[j]) ? A(0) : A(1)); });
    team.each(0, all, [=](int64_t j) { to.set(j, scaled_power(to.m[j])); });
    team.each(0, all, [=](int64_t j) { to.set(j, normalised(to[j])); });
    team.sync();
  }

  // Σ over all lengths of what a segment and its length are multiplied with, and of what is there.
  KERNEL Scaled<A> over_lengths(Warp warp, int64_t slot, int64_t edge, Row<A> there) const {
    const Row<A> segment = row(emitted, slot, room);
    const int64_t own = model(edge) * room;
    const Row<A> length{lengths.m + own, lengths.k + own};
    return scaled_sum_of_many<A>(warp, room,
                                 [=](int64_t i) { return segment[i] * length[i] * there[i]; });
  }

  // What the states have come to after t frames.
  KERNEL void forward(Team team, int64_t t, int64_t b) const {
    emit(team, b, min2(t, most()), t - 1, true);
    const Row<A> through = graph.row(kGamma), weight = graph.row(kInWeight);
    const int32_t *const begin = graph.list(kInBegin), *const from = graph.list(kInFrom);
    const int32_t *const slot = graph.list(kInSlot), *const edge = graph.list(kInEdge);
    const int64_t now = place(t);
    const Segments self = *this;
    team.each_by_warp(0, graph.states(), [=](Warp warp, int64_t s) {
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        const Row<A> before = self.since(from[i], now + 1);
        const Scaled<A> sum = self.over_lengths(warp, slot[i], edge[i], before);
        if (warp.rank() == 0) through.set(i, sum * weight[i]);
      }
      if (warp.rank() > 0) return;
      self.reach(s, now,
                 scaled_sum<A>(begin[s], begin[s + 1], [=](int64_t i) { return through[i]; }));
    });
    team.sync();
  }

  // From the start through all frames, arrived(t) after each, and before the first; the weight of
  // all paths together.
  template <class F>
  KERNEL Scaled<A> total(Team team, int64_t b, int64_t frames, F arrived) const {
    A* const bad = seen + graph.base * room;
    team.each(0, graph.slots() * room, [=](int64_t j) { bad[j] = 0; });
    start(team,
          [=](int64_t s) { return Scaled<A>{A(s == 0 ? 1 : 0), s == 0 ? 0 : Scale<A>::none}; });
    arrived(0);
    for (int64_t t = 1; t <= frames; ++t) {
      forward(team, t, b);
      arrived(t);
    }
    const Row<A> end = graph.row(kEnd);
    const int64_t last = place(frames);
    const Segments self = *this;
    return team_sum<A>(team, graph.states(),
                       [=](int64_t s) { return self.since(s, last)[0] * end[s]; });
  }

  // Whether some number that counts is no cost; after `total`.
  KERNEL bool sick(Team team, int64_t frames) const {
    const A* const bad = seen + graph.base * room;
    const int32_t* const edge = graph.list(kPlaceEdge);
    const Segments self = *this;
    const int64_t count = min2(most(), frames);
    return graph.sick() ||
           team.any(0, graph.slots() * room, [=](int64_t j) { return bad[j] != 0; }) ||
           team.any(0, length_costs ? arcs() : 0, [=](int64_t p) {
             const int64_t k = self.model(edge[p]);
             for (int64_t i = 0; k < self.models && i < count; ++i) {
               if (!is_cost(A(self.length_costs(k, i)))) return true;
             }
             return false;
           });
  }
};

// The memory of all walks.
template <class T>
class SegmentsMemory {
  using A = Accum<T>;

 public:
  SegmentsMemory(Device& dev, const Automata<T>& automata, In<T, 4> scores, In<T, 2> length_costs,
                 In<int32_t, 1> length_models)
      : index(dev, automata),
        room(round_up(scores.size(0), kTermsAtOnce)),
        models(length_costs ? length_costs.size(0) : 1),
        scores_(scores),
        length_costs_(length_costs),
        length_models_(length_models),
        lengths_(dev, models + 1, room),
        emitted_(dev, room, index.width),
        ring_(dev, 2 * (room + 1), index.width),
        seen_(dev.template workspace<A>(room * index.width)) {
    make_index(dev, automata, index);
    fill_lengths(dev, length_costs, scores.size(0), models, room, lengths_.first());
  }
  const Index<T> index;
  const int64_t room, models;  // room: for all lengths, in whole vectors

  // Of no sequence yet: its graph is that of all.
  Segments<T> walk() const {
    return {index.all(), scores_,          length_costs_,    length_models_, room,
            models,      lengths_.first(), emitted_.first(), ring_.first(),  seen_.data()};
  }

 private:
  const In<T, 4> scores_;
  const In<T, 2> length_costs_;
  const In<int32_t, 1> length_models_;
  const Rows<A> lengths_, emitted_, ring_;
  const Workspace<A> seen_;
};

// Models of length: those of edges that exist.
template <class T>
void check_segments(const Automata<T>& a, const In<T, 4>& scores, const In<int32_t, 1>& lengths,
                    const In<T, 2>& length_costs, const In<int32_t, 1>& length_models) {
  check_range("lengths", lengths, 0, scores.size(1), "the frames of `scores`");
  check_automata(a, "scores");
  if constexpr (kHostReads) {
    if (!length_costs || a.batch() == 0) return;
    const int64_t last = length_costs.size(0) - 1;
    for (int64_t e = 0; e < a.size(); ++e) {
      if (Accum<T>(a.weights(e)) == highest<Accum<T>>()) continue;
      const int64_t k = length_models ? length_models(e) : 0;
      if (k >= 0 && k <= last) continue;
      refuse(element("length_models", e), k, 0, last, "the rows of `length_costs`");
    }
  }
}

}  // namespace nativeops
