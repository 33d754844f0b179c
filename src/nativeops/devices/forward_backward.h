// SPDX-License-Identifier: Apache-2.0
// The sums over all paths of automata: forward to the total, and backward to the posteriors of
// edges and classes (Baum et al. 1970; Rabiner 1989, section III). A sequence is the work of one
// team, its states and arcs that of the team's threads.
#pragma once
#include "nativeops/devices/automaton.h"
#include "nativeops/devices/logarithm.h"
#include "nativeops/devices/parts.h"

namespace nativeops {

// Where the numbers of each frame are, padded or packed.
struct Places {
  int64_t time, sequence, one;  // strides
  In<int32_t, 1> first;         // of packed frames: where each sequence begins, in frames
  In<int32_t, 1> lengths;
  int64_t steps, batch;

  HOST_DEVICE int64_t begin(int64_t b) const { return first ? length_of(first, b, steps) : 0; }
  HOST_DEVICE int64_t frames(int64_t b) const { return length_of(lengths, b, steps - begin(b)); }
  HOST_DEVICE int64_t of(int64_t t, int64_t b, int64_t c) const {
    return (begin(b) + t) * time + b * sequence + c * one;
  }
};
template <class T>
Places padded(View<T, 3> array, In<int32_t, 1> lengths) {
  return {array.stride(0), array.stride(1), array.stride(2), {},
          lengths,         array.size(0),   array.size(1)};
}
template <class T>
Places packed(View<T, 2> array, In<int32_t, 1> first, In<int32_t, 1> lengths) {
  return {array.stride(0), 0, array.stride(1), first, lengths, array.size(0), first.size(0)};
}

// Costs of the classes in each frame: -log of what a path is multiplied with.
template <class T>
struct Costs {
  const T* data;
  Places places;
  bool logs = false;                       // whether these are logarithms, not costs
  const LogSum<Accum<T>>* norm = nullptr;  // of each frame, t · batch + b, if these are logits

  HOST_DEVICE int64_t frames(int64_t b) const { return places.frames(b); }
  HOST_DEVICE Accum<T> operator()(int64_t t, int64_t b, int64_t c) const {
    const Accum<T> value = data[places.of(t, b, c)];
    return norm ? -norm[t * places.batch + b].from(value) : logs ? -value : value;
  }
  // What rounding took from the cost of a logit, as the factor that it lacks.
  HOST_DEVICE Accum<T> lost(int64_t t, int64_t b, int64_t c) const {
    return power_of_rest(norm[t * places.batch + b].lost(Accum<T>(data[places.of(t, b, c)])));
  }
};

// Rows of states in time: those of all frames or, where these are too many, of a part's frames, and
// of every part the first. The others are computed again on the way back.
template <class A>
struct History {
  Row<A> rows, first;
  int64_t width;  // numbers in a row
  bool whole;
  int64_t part;  // frames of a part

  HOST_DEVICE History of(int64_t frames) const {
    History mine = *this;
    mine.part = root_of(frames);
    return mine;
  }
  // What is reached before a frame, and after it.
  HOST_DEVICE Row<A> before(int64_t t, int64_t base) const { return reached(t, 0, base); }
  HOST_DEVICE Row<A> after(int64_t t, int64_t base) const { return reached(t, 1, base); }
  HOST_DEVICE Row<A> first_of(int64_t p, int64_t base) const { return at(first, p, base); }
  HOST_DEVICE Row<A> at(Row<A> some, int64_t i, int64_t base) const {
    return {some.m + i * width + base, some.k + i * width + base};
  }

 private:
  HOST_DEVICE Row<A> reached(int64_t t, int64_t later, int64_t base) const {
    return at(rows, (whole ? t : t % part) + later, base);
  }
};

// How much of all paths some are.
template <class A>
HOST_DEVICE A share_of(Scaled<A> some, Scaled<A> all) {
  return some.m / all.m * power_of<A>(min2<Exponent<A>>(max2(some.k, Scale<A>::none) - all.k, 1));
}

// Σ term(i) over 0 <= i < n, known to all threads.
template <class A, class F>
KERNEL Scaled<A> team_sum(Team team, int64_t n, F term) {
  using K = Exponent<A>;
  const K top = team.max(0, n, [=](int64_t i) { return max2(term(i).k, Scale<A>::none); });
  const K high = max2(top, Scale<A>::none);
  const A all = team.sum(0, n, [=](int64_t i) {
    const Scaled<A> a = term(i);
    return a.m * power_of<A>(max2(a.k, Scale<A>::none) - high);
  });
  return normalised<A>({high == Scale<A>::none ? A(0) : all, high});
}

template <class T>
struct Passes {
  using A = Accum<T>;
  Graph<A> graph;
  Costs<T> costs;
  History<A> history;

  // Emissions of a frame; what is no cost is remembered in kSum.
  KERNEL void emit(Team team, int64_t t, int64_t b) const {
    const Row<A> emitted = graph.row(kEmitted), seen = graph.row(kSum);
    const int32_t* const classes = graph.list(kClasses);
    const Costs<T> costs = this->costs;
    team.each(0, graph.slots(), [=](int64_t s) { emitted.m[s] = costs(t, b, classes[s]); });
    team.each(0, graph.slots(),
              [=](int64_t s) { seen.m[s] = max2(seen.m[s], is_cost(emitted.m[s]) ? A(0) : A(1)); });
    team.each(0, graph.slots(), [=](int64_t s) { emitted.set(s, scaled_power(emitted.m[s])); });
    team.each(0, costs.norm ? graph.slots() : 0,
              [=](int64_t s) { emitted.m[s] *= costs.lost(t, b, classes[s]); });
    team.each(0, graph.slots(), [=](int64_t s) { emitted.set(s, normalised(emitted[s])); });
    team.sync();
  }

  // Σ before[from] · emission · weight over all arcs that lead to s
  KERNEL Scaled<A> arriving(int64_t s, Row<A> before) const {
    const Row<A> emitted = graph.row(kEmitted), weight = graph.row(kInWeight);
    const int32_t *const begin = graph.list(kInBegin), *const from = graph.list(kInFrom);
    const int32_t* const slot = graph.list(kInSlot);
    return scaled_sum<A>(begin[s], begin[s + 1],
                         [=](int64_t i) { return before[from[i]] * emitted[slot[i]] * weight[i]; });
  }
  // next[s] = that
  KERNEL void forward(Team team, int64_t t, int64_t b, Row<A> before, Row<A> next) const {
    emit(team, t, b);
    const Passes self = *this;
    team.each(0, graph.states(), [=](int64_t s) { next.set(s, self.arriving(s, before)); });
    team.sync();
  }

  // `steps` is this, or what computes the same steps in another way.
  template <class Steps>
  KERNEL void run_part(const Steps& steps, Team team, int64_t b, int64_t low, int64_t high) const {
    for (int64_t t = low; t < high; ++t) {
      steps.forward(team, t, b, history.before(t, graph.base), history.after(t, graph.base));
    }
  }
  KERNEL void copy(Team team, Row<A> from, Row<A> to) const {
    team.each(0, graph.states(), [=](int64_t s) { to.set(s, from[s]); });
    team.sync();
  }
  // The row after the first `frames` frames.
  KERNEL Row<A> after(int64_t frames) const {
    return frames > 0 ? history.after(frames - 1, graph.base) : history.before(0, graph.base);
  }
  KERNEL int64_t parts(int64_t b) const { return ceil_div(costs.frames(b), history.part); }
  // The row before the first frame.
  KERNEL void start(Team team, Row<A> first) const {
    const Row<A> seen = graph.row(kSum);
    team.each(0, graph.states(),
              [=](int64_t s) { first.set(s, {A(s == 0 ? 1 : 0), s == 0 ? 0 : Scale<A>::none}); });
    team.each(0, graph.slots(), [=](int64_t s) { seen.m[s] = 0; });
    team.sync();
  }

  // From the start state through all frames; the weight of all paths together.
  template <class Steps>
  KERNEL Scaled<A> total(const Steps& steps, Team team, int64_t b) const {
    const int64_t frames = costs.frames(b), base = graph.base;
    const Row<A> end = graph.row(kEnd);
    start(team, history.before(0, base));
    for (int64_t p = 0; p < parts(b); ++p) {
      const int64_t low = p * history.part, high = min2(frames, low + history.part);
      const Row<A> first = history.before(low, base);
      if (p > 0 && !history.whole) copy(team, after(low), first);
      if (!history.whole) copy(team, first, history.first_of(p, base));
      run_part(steps, team, b, low, high);
    }
    const Row<A> last = after(frames);
    return team_sum<A>(team, graph.states(), [=](int64_t s) { return last[s] * end[s]; });
  }

  // The row after the first `frames` frames, without a history.
  template <class Steps>
  KERNEL Row<A> run_to(const Steps& steps, Team team, int64_t b, int64_t frames) const {
    Row<A> now = graph.row(kBeta), next = graph.row(kBetaNext);
    start(team, now);
    for (int64_t t = 0; t < frames; ++t) {
      steps.forward(team, t, b, now, next);
      const Row<A> swap = now;
      now = next;
      next = swap;
    }
    return now;
  }

  // Whether some class that the automaton emits has no cost in some frame; after `total`.
  KERNEL bool sick(Team team) const { return is_sick(team, graph); }

  // From the end back to the start: arrived(.., t, b, steps, beta, all) after each frame, when kSum
  // has the sum of all paths through each class, `beta` what is behind the frame, and `all` is the
  // sum of all paths. Before and after a part's frames: arrived.begin(..) and arrived.end(..),
  // whose row is free for what the part has come to.
  template <class Steps, class F>
  KERNEL void backward(const Steps& steps, Team team, int64_t b, const F& arrived) const {
    Row<A> beta = graph.row(kEnd);
    for (int64_t p = parts(b) - 1; p >= 0; --p) {
      beta = part_back(steps, team, b, p, beta, p + 1 < parts(b), arrived);
    }
  }
  // One part of it, from the row behind it to the one before it. Its rows are computed `again`
  // where others have taken their place.
  template <class Steps, class F>
  KERNEL Row<A> part_back(const Steps& steps, Team team, int64_t b, int64_t p, Row<A> behind,
                          bool again, const F& arrived) const {
    const int64_t low = p * history.part, high = min2(costs.frames(b), low + history.part);
    Row<A> beta = graph.row(kBeta), next = graph.row(kBetaNext);
    if (behind.m != beta.m) copy(team, behind, beta);
    if (again && !history.whole) {
      copy(team, history.first_of(p, graph.base), history.before(low, graph.base));
      run_part(steps, team, b, low, high);
    }
    arrived.begin(team, steps);
    for (int64_t t = high - 1; t >= low; --t) {
      steps.step_back(team, t, b, beta, next);
      const Row<A> sums = graph.row(kSum);
      const Scaled<A> all = team_sum<A>(team, graph.slots(), [=](int64_t s) { return sums[s]; });
      arrived(team, t, b, steps, beta, all);
      const Row<A> swap = beta;
      beta = next;
      next = swap;
    }
    arrived.end(team, steps, history.first_of(p, graph.base));
    return beta;
  }

  // How much of all paths go through each arc, summed over frames: begin_taken, take after each
  // frame's step_back, and end_taken, which writes them in the order of taken_edges.
  KERNEL void begin_taken(Team team) const {
    const Row<A> taken = graph.row(kTaken);
    team.each(0, arcs(), [=](int64_t i) { taken.m[i] = 0; });
    team.sync();
  }
  KERNEL void take(Team team, int64_t, Row<A>, Scaled<A> all) const {
    const Row<A> gamma = graph.row(kGamma), taken = graph.row(kTaken);
    team.each(0, arcs(), [=](int64_t i) { taken.m[i] += share_of(gamma[i], all); });
    team.sync();
  }
  KERNEL void end_taken(Team team, A* to) const {
    const Row<A> taken = graph.row(kTaken);
    team.each(0, arcs(), [=](int64_t i) { to[i] = taken.m[i]; });
    team.sync();
  }
  HOST_DEVICE const int32_t* taken_edges() const { return graph.list(kPlaceEdge); }
  HOST_DEVICE int32_t arcs() const { return graph.list(kSlotBegin)[graph.slots()]; }

  // beta[to] · emission · weight of an arc, by the state that it leaves
  KERNEL Scaled<A> leaving(int64_t i, Row<A> beta) const {
    const int32_t to = graph.list(kOutTo)[i], slot = graph.list(kOutSlot)[i];
    return beta[to] * graph.row(kEmitted)[slot] * graph.row(kOutWeight)[i];
  }
  // next[s] = Σ beta[to] · emission · weight over all arcs that leave s, and what kGamma and kSum
  // are to have.
  KERNEL void step_back(Team team, int64_t t, int64_t b, Row<A> beta, Row<A> next) const {
    emit(team, t, b);
    const Row<A> alpha = history.before(t, graph.base), gamma = graph.row(kGamma);
    const int32_t *const begin = graph.list(kOutBegin), *const place = graph.list(kOutPlace);
    const Passes self = *this;
    team.each(0, graph.states(), [=](int64_t s) {
      const auto arc = [=](int64_t i) { return self.leaving(i, beta); };
      const Scaled<A> own = alpha[s];
      next.set(s, scaled_sum<A>(begin[s], begin[s + 1], arc));
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) gamma.set(place[i], own * arc(i));
    });
    team.sync();
    const Row<A> sums = graph.row(kSum);
    const int32_t* const first = graph.list(kSlotBegin);
    const int64_t wide = team.size() > 1 ? graph.wide_slot() : -1;
    team.each(0, graph.slots(), [=](int64_t s) {
      if (s == wide) return;
      sums.set(s, scaled_sum<A>(first[s], first[s + 1], [=](int64_t i) { return gamma[i]; }));
    });
    if (wide >= 0) {  // one thread would add half of all arcs to a blank, while others wait
      const int64_t begin_wide = first[wide];
      const Scaled<A> all = team_sum<A>(team, first[wide + 1] - begin_wide,
                                        [=](int64_t i) { return gamma[begin_wide + i]; });
      if (team.rank() == 0) sums.set(wide, all);
    }
    team.sync();
  }
};

// Rows of scaled numbers.
template <class A>
class Rows {
 public:
  Rows(Device& dev, int64_t rows, int64_t width)
      : m_(dev.template workspace<A>(rows * width)),
        k_(dev.template workspace<Exponent<A>>(rows * width)) {}
  Row<A> first() const { return {m_.data(), k_.data()}; }

 private:
  Workspace<A> m_;
  Workspace<Exponent<A>> k_;
};

// Memory of the passes over all sequences.
template <class T>
class Memory {
 public:
  using A = Accum<T>;
  Memory(Device& dev, const Automata<T>& automata, int64_t steps)
      : index(dev, automata),
        parts(root_of(steps)),
        whole(is_whole(steps, index.width)),
        rows_(dev, whole ? steps + 1 : parts + 1, index.width),
        first_(dev, parts, index.width) {
    make_index(dev, automata, index);
  }
  const Index<T> index;
  const int64_t parts;  // at most, and the frames of one at most
  const bool whole;
  History<A> history() const { return {rows_.first(), first_.first(), index.width, whole, parts}; }

 private:
  const Rows<A> rows_, first_;
};

// Each sequence is the work of one team, in the steps of P: to its end, and if f.found(..) says so,
// back again to the start; f.finish(..) then, if f.sums_up().
template <class P>
struct TeamEach {
  template <class T, class F>
  static void run(Device& dev, const Memory<T>& memory, const Costs<T>& costs, const F& f) {
    using A = Accum<T>;
    const Graph<A> all = memory.index.all();
    const int64_t* const begin = memory.index.begin();
    const History<A> history = memory.history();
    for_each_item(dev, costs.places.batch, [=] KERNEL(Team team, int64_t b) {
      const P passes{graph_of(all, begin, b), costs, history.of(costs.frames(b))};
      const Scaled<A> sum = passes.total(passes, team, b);
      if (!f.found(team, b, passes, sum, passes.sick(team) || is_beyond(sum))) return;
      passes.backward(passes, team, b, f);
      if (f.sums_up()) f.finish(team, b, passes);
    });
  }
  // found(team, b, sum, sick) of each sequence.
  template <class T, class F>
  static void totals(Device& dev, const Index<T>& index, const Costs<T>& costs, const F& found) {
    using A = Accum<T>;
    const Graph<A> all = index.all();
    const int64_t* const begin = index.begin();
    for_each_item(dev, costs.places.batch, [=] KERNEL(Team team, int64_t b) {
      const P passes{graph_of(all, begin, b), costs, {}};
      const Row<A> last = passes.run_to(passes, team, b, costs.frames(b));
      const Row<A> end = passes.graph.row(kEnd);
      const Scaled<A> sum =
          team_sum<A>(team, passes.graph.states(), [=](int64_t s) { return last[s] * end[s]; });
      found(team, b, sum, passes.sick(team) || is_beyond(sum));
    });
  }
};

}  // namespace nativeops
