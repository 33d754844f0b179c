// SPDX-License-Identifier: Apache-2.0
// The transducer's lattice on every device: nodes (t, u) after t frames and u labels, from (0, 0)
// to (T, U), of which all with the same step can be computed at once. Logarithms of sums over paths
// are in double: in float a lattice of thousands of steps would lose all but a few digits.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "nativeops/devices/kernel.h"

namespace nativeops::transducer {

// What an op gets. Values are clamped where they cannot be checked, so that no memory beyond the
// arrays is read.
template <class T, class I>
struct Joint {
  In<T, 4> logits;   // b t u+1 v
  In<I, 2> targets;  // b u
  In<I, 1> logit_lengths, target_lengths;
  int64_t own_blank;
  bool each_frame;  // a label needs a frame, as the blank does

  HOST_DEVICE int64_t batch() const { return logits.size(0); }
  HOST_DEVICE int64_t classes() const { return logits.size(3); }
  HOST_DEVICE int64_t blank() const { return own_blank < 0 ? classes() + own_blank : own_blank; }
  HOST_DEVICE int64_t frames(int64_t b) const { return within(logit_lengths(b), logits.size(1)); }
  HOST_DEVICE int64_t labels(int64_t b) const { return within(target_lengths(b), targets.size(1)); }
  HOST_DEVICE int64_t label(int64_t b, int64_t u) const {
    return within(targets(b, u), classes() - 1);
  }
  HOST_DEVICE static int64_t within(int64_t value, int64_t most) {
    return max2<int64_t>(0, min2(value, most));
  }
};

// The nodes of a sequence by steps: step s has the nodes (time(s, u), u) for low(s) <= u <=
// high(s), those that a path can pass.
struct Steps {
  int64_t frames, labels;
  bool each_frame;

  HOST_DEVICE int64_t count() const { return each_frame ? frames : frames + labels; }
  HOST_DEVICE int64_t time(int64_t s, int64_t u) const { return each_frame ? s : s - u; }
  HOST_DEVICE int64_t low(int64_t s) const {
    if (s == count()) return labels;
    return max2<int64_t>(0, each_frame ? labels - (frames - s) : s - frames + 1);
  }
  HOST_DEVICE int64_t high(int64_t s) const { return min2(labels, s); }
  HOST_DEVICE bool has_path() const {
    return each_frame ? labels <= frames : labels == 0 || frames > 0;
  }
  HOST_DEVICE bool passes(int64_t t, int64_t u) const {
    if (t >= frames || u > labels || !has_path()) return false;
    return !each_frame || (u <= t && labels - u <= frames - t);
  }
};
template <class T, class I>
HOST_DEVICE Steps steps_of(const Joint<T, I>& joint, int64_t b) {
  return {joint.frames(b), joint.labels(b), joint.each_frame};
}

// What is known of each cell, in planes: the largest logit, the sum of exponentials relative to it,
// and the log-probabilities of the blank and of the next label.
enum Plane { kShift, kSum, kBlank, kLabel, kPlanes };

// The planes in the caller's array if it can hold them, else in a workspace.
template <class T>
struct Cells {
  using A = Accum<T>;
  static constexpr bool kHolds = std::is_same<T, A>::value;

  template <class I, class Given>
  Cells(Device& dev, const Joint<T, I>& joint, View<Given, 4> lattice)
      : given(kHolds && lattice),
        memory(dev.template workspace<A>(given ? 0 : size(joint))),
        view(dense(memory.data(), joint.batch(), int{kPlanes}, joint.logits.size(1),
                   joint.logits.size(2))) {
    if constexpr (kHolds) {
      if (!given) return;
      view.data = const_cast<A*>(lattice.data);  // written only where it is a result
      for (int axis = 0; axis < 4; ++axis) view.stride_[axis] = lattice.stride(axis);
    }
  }
  template <class I>
  static int64_t size(const Joint<T, I>& joint) {
    return joint.batch() * kPlanes * joint.logits.size(1) * joint.logits.size(2);
  }

  const bool given;
  Workspace<A> memory;
  Out<A, 4> view;  // b plane t u+1
};

// The probabilities, given the target, to leave a cell by the blank and by the label.
template <class T>
struct Leaving {
  using A = Accum<T>;
  template <class I>
  Leaving(Device& dev, const Joint<T, I>& joint)
      : memory(dev.template workspace<A>(2 * joint.batch() * joint.logits.size(1) *
                                         joint.logits.size(2))),
        view(dense(memory.data(), joint.batch(), 2, joint.logits.size(1), joint.logits.size(2))) {}

  Workspace<A> memory;
  Out<A, 4> view;  // b, blank or label, t u+1
};

// What flows back, and where to.
template <class T>
struct Flow {
  In<T, 1> d_costs;
  Out<T, 4> d_logits;
  double clamp;
  bool normalises;

  HOST_DEVICE Accum<T> bounded(Accum<T> value) const {
    const auto most = static_cast<Accum<T>>(clamp);
    if (!(clamp > 0)) return value;
    return value > most ? most : value < -most ? -most : value;
  }
};

[[noreturn]] inline void refuse(const std::string& what, int64_t value, const std::string& range) {
  throw std::runtime_error("`" + what + "` is " + std::to_string(value) + ", but must be " + range +
                           ".");
}
inline std::string place(const std::string& name, int64_t b) {
  return name + "[" + std::to_string(b) + "]";
}

// Lengths, labels and the blank are refused here where memory can be read.
template <class T, class I>
void check(const Joint<T, I>& joint) {
#if !defined(__CUDACC__)
  const int64_t last = joint.classes() - 1, t = joint.logits.size(1), u = joint.targets.size(1);
  if (joint.own_blank > last && last >= 0) {
    refuse("blank", joint.own_blank,
           "from -1, the last, to " + std::to_string(last) + ", as `logits` has " +
               std::to_string(last + 1) + " classes");
  }
  for (int64_t b = 0; b < joint.batch(); ++b) {
    const int64_t frames = joint.logit_lengths(b), labels = joint.target_lengths(b);
    if (frames < 0 || frames > t)
      refuse(place("logit_lengths", b), frames,
             "from 0 to " + std::to_string(t) + ", the frames of `logits`");
    if (labels < 0 || labels > u)
      refuse(place("target_lengths", b), labels,
             "from 0 to " + std::to_string(u) + ", the labels of `targets`");
    for (int64_t i = 0; i < labels; ++i) {
      const int64_t label = joint.targets(b, i);
      if (label < 0 || label > last || label == joint.blank())
        refuse(place("targets", b) + "[" + std::to_string(i) + "]", label,
               "from 0 to " + std::to_string(last) + " and not the blank " +
                   std::to_string(joint.blank()));
    }
  }
#else
  (void)joint;
#endif
}

// The log-probabilities of a cell's blank and label, from what its softmax is made of.
template <class T, class I, class A>
KERNEL void put_cell(const Joint<T, I>& joint, const Out<A, 4>& cells, bool normalises, int64_t b,
                     int64_t t, int64_t u, A largest, A sum) {
  const A shift = largest == lowest<A>() ? A(0) : largest;  // of a row of -inf alone
  sum = sum == 0 ? A(1) : sum;
  const A log_sum = normalises ? log(sum) : A(0), taken = normalises ? shift : A(0);
  cells(b, int{kShift}, t, u) = shift;
  cells(b, int{kSum}, t, u) = sum;
  const bool any = joint.classes() > 0;
  const bool more = any && u < joint.labels(b);
  const A by_blank = any ? A(joint.logits(b, t, u, joint.blank())) : lowest<A>();
  const A by_label = more ? A(joint.logits(b, t, u, joint.label(b, u))) : lowest<A>();
  cells(b, int{kBlank}, t, u) = (by_blank - taken) - log_sum;
  cells(b, int{kLabel}, t, u) = more ? (by_label - taken) - log_sum : by_label;
}

// The planes of all cells within the lengths.
template <class T, class I>
void statistics(Device& dev, const Joint<T, I>& joint, const Out<Accum<T>, 4>& cells,
                bool normalises) {
  using A = Accum<T>;
  const int64_t frames = joint.logits.size(1), width = joint.logits.size(2);
  for_each_item(dev, joint.batch() * frames * width, [=] KERNEL(Team team, int64_t cell) {
    const int64_t u = cell % width, t = cell / width % frames, b = cell / width / frames;
    if (t >= joint.frames(b) || u > joint.labels(b)) return;
    const auto row = at(at(at(joint.logits, b), t), u);
    A largest = 0, sum = 1;
    if (normalises) {
      largest = team.max(0, row.size(0), [=](int64_t k) { return A(row(k)); });
      const A shift = largest == lowest<A>() ? A(0) : largest;
      sum = team.sum(0, row.size(0), [=](int64_t k) { return exp(A(row(k)) - shift); });
    }
    if (team.rank() == 0) put_cell(joint, cells, normalises, b, t, u, largest, sum);
  });
}

// Two steps of logarithms, each with a -infinity at both ends.
struct Rolling {
  Out<double, 1> memory;
  HOST_DEVICE static int64_t size(int64_t labels) { return 2 * (labels + 3); }
  HOST_DEVICE double& operator()(int64_t s, int64_t u) const {
    return memory(s % 2 * (memory.size(0) / 2) + u + 1);
  }
  HOST_DEVICE void clear(int64_t i) const { memory(i) = lowest<double>(); }
};

// Both log-probabilities of node u of step s, which must have a frame.
template <class A>
struct Symbols {
  Out<A, 4> cells;
  Steps steps;
  int64_t b;
  KERNEL double blank(int64_t s, int64_t u) const { return of(kBlank, s, u); }
  KERNEL double label(int64_t s, int64_t u) const { return of(kLabel, s, u); }
  // Kept within the array: where there is no such node, what is added to it is -infinity.
  KERNEL double of(Plane plane, int64_t s, int64_t u) const {
    const int64_t t = steps.time(s, u), last = steps.frames - 1;
    const int64_t row = t < 0 ? 0 : t > last ? last : t;
    return cells(b, int{plane}, row, u < 0 ? 0 : u);
  }
};

// α of step s from step s - 1:
// α[t, u] = log(exp(α[t - 1, u] + blank[t - 1, u]) + exp(α[t', u - 1] + label[t', u - 1])),
// t' = t, or t - 1 where a label needs a frame.
template <class A>
KERNEL void advance(Team team, const Symbols<A>& symbols, const Rolling& alpha, int64_t s) {
  const int64_t low = symbols.steps.low(s), before = s - 1;
  team.each(low, symbols.steps.high(s) + 1, [=](int64_t u) {
    alpha(s, u) = logaddexp(alpha(before, u) + symbols.blank(before, u),
                            alpha(before, u - 1) + symbols.label(before, u - 1));
  });
  if (team.rank() == 0) alpha(s, low - 1) = lowest<double>();  // what stood there is two steps old
}

template <class A, class F>
KERNEL void walk(Team team, const Symbols<A>& symbols, const Rolling& alpha, F&& visit) {
  const Rolling own = alpha;
  team.each(0, alpha.memory.size(0), [=](int64_t i) { own.clear(i); });
  team.sync();
  if (team.rank() == 0) alpha(0, 0) = 0;
  for (int64_t s = 1; s <= symbols.steps.count(); ++s) {
    team.sync();
    visit(s - 1);
    advance(team, symbols, alpha, s);
  }
  team.sync();
}

// costs = -α[T, U]
template <class T, class I>
void forward(Device& dev, const Joint<T, I>& joint, const Out<Accum<T>, 4>& cells,
             const Out<T, 1>& costs) {
  using A = Accum<T>;
  const int64_t size = Rolling::size(joint.targets.size(1));
  for_each_item<double>(dev, joint.batch(), size,
                        [=] KERNEL(Team team, int64_t b, Out<double, 1> scratch) {
                          const Steps steps = steps_of(joint, b);
                          const Rolling alpha{scratch};
                          double total = lowest<double>();
                          if (steps.has_path()) {
                            walk(team, Symbols<A>{cells, steps, b}, alpha, [](int64_t) {});
                            total = alpha(steps.count(), steps.labels);
                          }
                          if (team.rank() == 0) costs(b) = T(static_cast<A>(0 - total));
                        });
}

// β of step s from step s + 1, and the probabilities to leave its nodes:
// β[t, u] = log(exp(blank[t, u] + β[t + 1, u]) + exp(label[t, u] + β[t', u + 1]))
// b = exp(α[t, u] + blank[t, u] + β[t + 1, u] - α[T, U]), l likewise
template <class A>
KERNEL void retreat(Team team, const Symbols<A>& symbols, const Rolling& beta,
                    const Out<double, 2>& alphas, double total, const Out<A, 4>& leaving,
                    int64_t s) {
  const int64_t b = symbols.b;
  const bool none = total == lowest<double>();
  const Steps steps = symbols.steps;
  team.each(steps.low(s), steps.high(s) + 1, [=](int64_t u) {
    const int64_t t = steps.time(s, u);
    const double stay = symbols.blank(s, u) + beta(s + 1, u);
    const double move = symbols.label(s, u) + beta(s + 1, u + 1);
    const double before = alphas(t, u) - total;
    leaving(b, 0, t, u) = none ? A(0) : exp(static_cast<A>(before + stay));
    leaving(b, 1, t, u) = none ? A(0) : exp(static_cast<A>(before + move));
    beta(s, u) = logaddexp(stay, move);
  });
}

// Both probabilities to leave, of all cells that a path can pass.
template <class T, class I>
void backward(Device& dev, const Joint<T, I>& joint, const Out<Accum<T>, 4>& cells,
              const Out<Accum<T>, 4>& leaving) {
  using A = Accum<T>;
  const int64_t rolling = Rolling::size(joint.targets.size(1));
  const int64_t nodes = joint.logits.size(1) * joint.logits.size(2);
  for_each_item<double>(dev, joint.batch(), rolling + nodes,
                        [=] KERNEL(Team team, int64_t b, Out<double, 1> scratch) {
                          const Steps steps = steps_of(joint, b);
                          if (!steps.has_path() || steps.count() == 0) return;
                          const Symbols<A> symbols{cells, steps, b};
                          const Rolling sums{View<double, 1>{scratch.data, {rolling}, {1}}};
                          const int64_t width = steps.labels + 1;
                          const View<double, 2> alphas =
                              dense(scratch.data + rolling, steps.frames, width);
                          walk(team, symbols, sums, [=](int64_t s) {
                            team.each(steps.low(s), steps.high(s) + 1,
                                      [=](int64_t u) { alphas(steps.time(s, u), u) = sums(s, u); });
                          });
                          const double total = sums(steps.count(), steps.labels);
                          team.sync();
                          team.each(0, rolling, [=](int64_t i) { sums.clear(i); });
                          team.sync();
                          if (team.rank() == 0) sums(steps.count(), steps.labels) = 0;
                          for (int64_t s = steps.count() - 1; s >= 0; --s) {
                            team.sync();
                            retreat(team, symbols, sums, alphas, total, leaving, s);
                          }
                        });
}

// y·(b + l) - [k = blank]·b - [k = label]·l, bounded, times what flows back
template <class T, class I>
void gradient(Device& dev, const Joint<T, I>& joint, const Out<Accum<T>, 4>& cells,
              const Out<Accum<T>, 4>& leaving, const Flow<T>& flow) {
  using A = Accum<T>;
  const int64_t frames = joint.logits.size(1), width = joint.logits.size(2);
  for_each_item(dev, joint.batch() * frames * width, [=] KERNEL(Team team, int64_t cell) {
    const int64_t u = cell % width, t = cell / width % frames, b = cell / width / frames;
    const auto row = at(at(at(joint.logits, b), t), u);
    const auto d_row = at(at(at(flow.d_logits, b), t), u);
    const bool passes = steps_of(joint, b).passes(t, u);
    const A by_blank = passes ? leaving(b, 0, t, u) : A(0);
    const A by_label = passes ? leaving(b, 1, t, u) : A(0);
    if (by_blank + by_label == 0) {
      team.each(0, row.size(0), [=](int64_t k) { d_row(k) = T(A(0)); });
      return;
    }
    const A shift = cells(b, int{kShift}, t, u), d_cost = A(flow.d_costs(b));
    const A scale = flow.normalises ? (by_blank + by_label) / cells(b, int{kSum}, t, u) : A(0);
    const int64_t blank = joint.blank(), label = u < joint.labels(b) ? joint.label(b, u) : -1;
    team.each(0, row.size(0), [=](int64_t k) {
      const A shown = flow.normalises ? scale * exp(A(row(k)) - shift) : A(0);
      const A taken = (k == blank ? by_blank : A(0)) + (k == label ? by_label : A(0));
      d_row(k) = T(flow.bounded(shown - taken) * d_cost);
    });
  });
}

}  // namespace nativeops::transducer
