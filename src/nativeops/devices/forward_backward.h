// SPDX-License-Identifier: Apache-2.0
// The sums over all paths of automata: forward to the total, and backward to the posteriors of
// edges and classes (Baum et al. 1970; Rabiner 1989, section III). A sequence is the work of one
// team, its states and arcs that of the team's threads.
#pragma once
#include "nativeops/devices/automaton.h"

namespace nativeops {

// Where the numbers of each frame are, padded or packed.
struct Places {
  int64_t time, sequence, one;  // strides
  In<int32_t, 1> first;         // of packed frames: where each sequence begins, in frames
  In<int32_t, 1> lengths;
  int64_t steps, batch;

  HOST_DEVICE int64_t frames(int64_t b) const { return length_of(lengths, b, steps); }
  HOST_DEVICE int64_t of(int64_t t, int64_t b, int64_t c) const {
    return (first ? first(b) * time : b * sequence) + t * time + c * one;
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
  bool logs = false;  // whether these are logarithms, not costs
  const Accum<T>* norm =
      nullptr;  // log Σ e^logit of each frame, t · batch + b, if these are logits

  HOST_DEVICE int64_t frames(int64_t b) const { return places.frames(b); }
  HOST_DEVICE Accum<T> operator()(int64_t t, int64_t b, int64_t c) const {
    const Accum<T> value = data[places.of(t, b, c)];
    return norm ? norm[t * places.batch + b] - value : logs ? -value : value;
  }
};

// Rows of states in time. A part of all frames is in memory at once, of the others the first row:
// they are computed again on the way back.
template <class A>
struct History {
  A* m;
  Exponent<A>* k;
  int64_t width, part;  // numbers in a row, and frames of a part

  HOST_DEVICE Row<A> row(int64_t i, int64_t base) const {
    return {m + i * width + base, k + i * width + base};
  }
  HOST_DEVICE Row<A> in_part(int64_t t, int64_t base) const { return row(t % part, base); }
  HOST_DEVICE Row<A> last_of_part(int64_t base) const { return row(part, base); }
  HOST_DEVICE Row<A> kept(int64_t p, int64_t base) const { return row(part + 1 + p, base); }
};

constexpr int64_t kWholeHistory = 1 << 20;  // numbers: this many are kept for less time

inline int64_t part_of(int64_t steps, int64_t width) {
  int64_t part = max2<int64_t>(steps, 1);
  if (part * width > kWholeHistory) {
    part = 1;
    while (part * part < steps) ++part;
  }
  return part;
}

template <class T>
struct Passes {
  using A = Accum<T>;
  Graph<A> graph;
  Costs<T> costs;
  History<A> history;

  // Emissions of a frame; what is no cost is remembered in kGamma's place for the class.
  KERNEL void emit(Team team, int64_t t, int64_t b) const {
    const Row<A> emitted = graph.row(kEmitted), seen = graph.row(kSum);
    const int32_t* const classes = graph.list(kClasses);
    const Costs<T> costs = this->costs;
    team.each(0, graph.slots(), [=](int64_t s) { emitted.m[s] = costs(t, b, classes[s]); });
    team.each(0, graph.slots(),
              [=](int64_t s) { seen.m[s] = max2(seen.m[s], is_cost(emitted.m[s]) ? A(0) : A(1)); });
    team.each(0, graph.slots(), [=](int64_t s) { emitted.set(s, scaled_power(emitted.m[s])); });
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
    const int64_t base = graph.base;
    for (int64_t t = low; t < high; ++t) {
      const bool last = t + 1 == low + history.part;
      steps.forward(team, t, b, history.in_part(t, base),
                    last ? history.last_of_part(base) : history.in_part(t + 1, base));
    }
  }
  KERNEL void copy(Team team, Row<A> from, Row<A> to) const {
    team.each(0, graph.states(), [=](int64_t s) { to.set(s, from[s]); });
    team.sync();
  }
  // The row after the last of the frames before t.
  KERNEL Row<A> after(int64_t t) const {
    const bool full = t > 0 && t % history.part == 0;
    return full ? history.last_of_part(graph.base) : history.in_part(t, graph.base);
  }

  // From the start state through all frames; the weight of all paths together.
  template <class Steps>
  KERNEL Scaled<A> total(const Steps& steps, Team team, int64_t b) const {
    const int64_t frames = costs.frames(b), base = graph.base;
    const Row<A> first = history.in_part(0, base), seen = graph.row(kSum), end = graph.row(kEnd);
    team.each(0, graph.states(),
              [=](int64_t s) { first.set(s, {A(s == 0 ? 1 : 0), s == 0 ? 0 : Scale<A>::none}); });
    team.each(0, graph.slots(), [=](int64_t s) { seen.m[s] = 0; });
    team.sync();
    for (int64_t low = 0; low < frames; low += history.part) {
      if (low > 0) copy(team, history.last_of_part(base), first);
      copy(team, first, history.kept(low / history.part, base));
      run_part(steps, team, b, low, min2(frames, low + history.part));
    }
    const Row<A> last = after(frames);
    return sum(team, graph.states(), [=](int64_t s) { return last[s] * end[s]; });
  }

  // Whether some class that the automaton emits has no cost in some frame; after `total`.
  KERNEL bool sick(Team team) const {
    const Row<A> seen = graph.row(kSum);
    return graph.sick() || team.any(0, graph.slots(), [=](int64_t s) { return seen.m[s] != 0; });
  }

  // Σ term(i) over 0 <= i < n, known to all threads.
  template <class F>
  KERNEL Scaled<A> sum(Team team, int64_t n, F term) const {
    using K = Exponent<A>;
    const K top = team.max(0, n, [=](int64_t i) { return max2(term(i).k, Scale<A>::none); });
    const K high = max2(top, Scale<A>::none);
    const A all = team.sum(0, n, [=](int64_t i) {
      const Scaled<A> a = term(i);
      return a.m * power_of<A>(max2(a.k, Scale<A>::none) - high);
    });
    return normalised<A>({all, high});
  }

  // From the end back to the start: arrived(t, sums, all) after each frame, when kSum has the sum
  // of all paths through each class, kGamma through each arc in the order of classes, and `all` is
  // the sum of all paths.
  template <class Steps, class F>
  KERNEL void backward(const Steps& steps, Team team, int64_t b, const F& arrived) const {
    const int64_t frames = costs.frames(b), base = graph.base,
                  parts = (frames + history.part - 1) / history.part;
    copy(team, graph.row(kEnd), graph.row(kBeta));
    Row<A> beta = graph.row(kBeta), next = graph.row(kBetaNext);
    for (int64_t p = parts - 1; p >= 0; --p) {
      const int64_t low = p * history.part, high = min2(frames, low + history.part);
      if (p < parts - 1) {
        copy(team, history.kept(p, base), history.in_part(low, base));
        run_part(steps, team, b, low, high);
      }
      for (int64_t t = high - 1; t >= low; --t) {
        steps.step_back(team, t, b, beta, next);
        const Row<A> sums = graph.row(kSum);
        const Scaled<A> all = sum(team, graph.slots(), [=](int64_t s) { return sums[s]; });
        arrived(team, t, b, graph, all);
        const Row<A> swap = beta;
        beta = next;
        next = swap;
      }
    }
  }

  // beta[to] · emission · weight of an arc, by the state that it leaves
  KERNEL Scaled<A> leaving(int64_t i, Row<A> beta) const {
    const int32_t to = graph.list(kOutTo)[i], slot = graph.list(kOutSlot)[i];
    return beta[to] * graph.row(kEmitted)[slot] * graph.row(kOutWeight)[i];
  }
  // next[s] = Σ beta[to] · emission · weight over all arcs that leave s, and what kGamma and kSum
  // are to have.
  KERNEL void step_back(Team team, int64_t t, int64_t b, Row<A> beta, Row<A> next) const {
    emit(team, t, b);
    const Row<A> alpha = history.in_part(t, graph.base), gamma = graph.row(kGamma);
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
    team.each(0, graph.slots(), [=](int64_t s) {
      sums.set(s, scaled_sum<A>(first[s], first[s + 1], [=](int64_t i) { return gamma[i]; }));
    });
    team.sync();
  }
};

// Memory of the passes over all sequences.
template <class T>
class Memory {
 public:
  using A = Accum<T>;
  Memory(Device& dev, const Automata<T>& automata, int64_t steps)
      : index(dev, automata),
        part_(part_of(steps, index.width)),
        rows_(part_ + 1 + (steps + part_ - 1) / part_),
        m_(dev.template workspace<A>(rows_ * index.width)),
        k_(dev.template workspace<Exponent<A>>(rows_ * index.width)) {
    make_index(dev, automata, index);
  }
  const Index<T> index;
  History<A> history() const { return {m_.data(), k_.data(), index.width, part_}; }

 private:
  const int64_t part_, rows_;
  Workspace<A> m_;
  Workspace<Exponent<A>> k_;
};

}  // namespace nativeops
