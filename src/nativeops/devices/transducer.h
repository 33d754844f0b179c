// SPDX-License-Identifier: Apache-2.0
// The transducer's lattice on every device: nodes (t, u) after t frames and u labels, from (0, 0)
// to (T, U), of which all with the same step can be computed at once. Logarithms of sums over paths
// are in double: in float a lattice of thousands of steps would lose all but a few digits.
#pragma once
#include <cstdint>

#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/logarithm.h"

namespace nativeops::transducer {

// What an op gets. Values are clamped where they cannot be checked, so that no memory beyond the
// arrays is read.
template <class T, class I>
struct Joint {
  In<T, 4> logits;   // b t u+1 v
  In<I, 2> targets;  // b u
  In<int32_t, 1> logit_lengths, target_lengths;
  int64_t own_blank;
  bool each_frame;  // a label needs a frame, as the blank does

  HOST_DEVICE int64_t batch() const { return logits.size(0); }
  HOST_DEVICE int64_t classes() const { return logits.size(3); }
  HOST_DEVICE int64_t blank() const { return own_blank < 0 ? classes() + own_blank : own_blank; }
  HOST_DEVICE int64_t frames(int64_t b) const {
    return length_of(logit_lengths, b, logits.size(1));
  }
  HOST_DEVICE int64_t labels(int64_t b) const {
    return length_of(target_lengths, b, targets.size(1));
  }
  HOST_DEVICE int64_t label(int64_t b, int64_t u) const {
    return within(targets(b, u), classes() - 1);
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

// What is known of each cell, in planes: the largest logit, the logarithm of the sum of
// exponentials relative to it, and the logits of the blank and of the next label. These as they are
// given: once the others were taken away in float, one that was masked with -1e9 would have lost
// the others' digits, by which alone paths differ if all of them need it.
enum Plane { kShift, kLogSum, kBlank, kLabel, kPlanes };

// Numbers of each cell, one plane after the other.
template <class T>
struct Planes {
  using A = Accum<T>;
  template <class I>
  Planes(Device& dev, const Joint<T, I>& joint, int count)
      : memory(dev.template workspace<A>(joint.batch() * count * joint.logits.size(1) *
                                         joint.logits.size(2))),
        view(dense(memory.data(), joint.batch(), count, joint.logits.size(1),
                   joint.logits.size(2))) {}

  Workspace<A> memory;
  Out<A, 4> view;  // b plane t u+1
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

// Lengths, labels and the blank are refused here where memory can be read.
template <class T, class I>
void check(const Joint<T, I>& joint) {
  const int64_t last = joint.classes() - 1;
  if (joint.own_blank > last && last >= 0)
    refuse("blank", joint.own_blank, -1, last, "where -1 is the last class of `logits`");
  check_range("logit_lengths", joint.logit_lengths, 0, joint.logits.size(1),
              "the frames of `logits`");
  check_range("target_lengths", joint.target_lengths, 0, joint.targets.size(1),
              "the labels of `targets`");
  check_labels("targets", joint.targets, joint.target_lengths, joint.blank(), last,
               "the classes of `logits`");
}

// A cell, from what its softmax takes away from logits.
template <class T, class I, class A>
KERNEL void put_cell(const Joint<T, I>& joint, const Out<A, 4>& cells, int64_t b, int64_t t,
                     int64_t u, LogSum<A> log_sum) {
  const bool any = joint.classes() > 0, more = any && u < joint.labels(b);
  const bool none = log_sum.largest == lowest<A>();  // a row of -inf alone
  cells(b, int{kShift}, t, u) = none ? A(0) : log_sum.largest;
  cells(b, int{kLogSum}, t, u) = none ? A(0) : log_sum.rest;
  cells(b, int{kBlank}, t, u) = any ? A(joint.logits(b, t, u, joint.blank())) : lowest<A>();
  cells(b, int{kLabel}, t, u) = more ? A(joint.logits(b, t, u, joint.label(b, u))) : lowest<A>();
}

// The log-probability of a cell's blank or label.
template <class A>
KERNEL double log_prob(const In<A, 4>& cells, Plane symbol, int64_t b, int64_t t, int64_t u) {
  const LogSum<double> log_sum{static_cast<double>(cells(b, int{kShift}, t, u)),
                               static_cast<double>(cells(b, int{kLogSum}, t, u))};
  return bounded(log_sum.held_from(static_cast<double>(cells(b, int{symbol}, t, u))));
}

}  // namespace nativeops::transducer
