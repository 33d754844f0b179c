// SPDX-License-Identifier: Apache-2.0
// The automata of CTC as lists of edges. Declared in ctc_fsa.py.
#pragma once
#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"

namespace nativeops {

// One edge; a dead one, of infinite cost, is no edge.
struct Arc {
  int64_t from, to, label;
  bool dead;
};

// The states of a sequence with L labels: 2i is the blank before label i, 2i + 1 that label, 2L the
// last blank, 2L + 1 a dummy that leads nowhere, 2L + 2 the end; the start is state 0.
template <class I>
struct CtcStates {
  In<I, 1> targets;
  int64_t labels, blank;
  bool label_loop;

  HOST_DEVICE int64_t label(int64_t i) const { return targets(i); }
  HOST_DEVICE int64_t dummy() const { return 2 * labels + 1; }
  HOST_DEVICE int64_t end() const { return 2 * labels + 2; }
  HOST_DEVICE Arc none() const { return {dummy(), dummy(), blank, true}; }

  // From label i - 1 to label i, or to the end with it; into the dummy where they need a blank
  // in between.
  HOST_DEVICE Arc skip(int64_t i, int64_t to) const {
    const bool allowed = !label_loop || label(i) != label(i - 1);
    return {2 * i - 1, allowed ? to : dummy(), label(i), false};
  }
  // Edge k of the 5L + 5: five for each label and the blank before it, five for the end.
  HOST_DEVICE Arc edge(int64_t k) const {
    const int64_t i = k / 5, at = 2 * i, last = labels - 1;
    if (i < labels) {
      switch (k % 5) {
        case 0:
          return {at, at, blank, false};
        case 1:
          return {at, at + 1, label(i), false};
        case 2:
          return label_loop ? Arc{at + 1, at + 1, label(i), false} : none();
        case 3:
          return {at + 1, at + 2, blank, false};
        default:
          return i < last ? skip(i + 1, at + 3) : Arc{at + 1, end(), blank, false};
      }
    }
    switch (i > labels ? 5 : k % 5) {
      case 0:
        return {at, at, blank, false};
      case 1:
        return {at, end(), blank, false};
      case 2:
        return labels > 0 ? Arc{at - 2, end(), label(last), false} : none();
      case 3:
        return labels > 0 && label_loop ? Arc{at - 1, end(), label(last), false} : none();
      case 4:
        return labels > 1 ? skip(last, end()) : none();
      default:
        return none();
    }
  }
};

// Writes an edge whose states begin at `first`.
HOST_DEVICE inline void write_arc(Out<int32_t, 2> edges, Out<float, 1> weights, int64_t e, Arc arc,
                                  int64_t first, int64_t b) {
  edges(0, e) = static_cast<int32_t>(first + arc.from);
  edges(1, e) = static_cast<int32_t>(first + arc.to);
  edges(2, e) = static_cast<int32_t>(arc.label);
  edges(3, e) = static_cast<int32_t>(b);
  weights(e) = arc.dead ? highest<float>() : 0.0f;
}

template <class I>
void ctc_fsa(Device& dev, In<I, 2> targets, In<int32_t, 1> target_lengths, Out<int32_t, 2> edges,
             Out<float, 1> weights, Out<int32_t, 2> start_end_states, int64_t blank,
             bool label_loop) {
  const int64_t batch = targets.size(0), width = targets.size(1), own = 5 * width + 5;
  check_range("target_lengths", target_lengths, 0, width, "the width of `targets`");
  check_labels("targets", targets, target_lengths, blank, INT32_MAX, "a class");
  for_each(dev, weights, [=] KERNEL(int64_t e) {
    const int64_t b = e / own, labels = length_of(target_lengths, b, width);
    const CtcStates<I> states{at(targets, b), labels, blank, label_loop};
    write_arc(edges, weights, e, states.edge(e % own), b * (2 * width + 3), b);
  });
  const View<int32_t, 1> starts{start_end_states.data, {batch}, {start_end_states.stride(1)}};
  for_each(dev, starts, [=] KERNEL(int64_t b) {
    const int64_t first = b * (2 * width + 3);
    start_end_states(0, b) = static_cast<int32_t>(first);
    const int64_t labels = length_of(target_lengths, b, width);
    start_end_states(1, b) = static_cast<int32_t>(first + 2 * labels + 2);
  });
}

template <class I>
void ctc_fsa_packed(Device& dev, In<I, 1> targets, In<int32_t, 1> target_lengths,
                    Out<int32_t, 2> edges, Out<float, 1> weights, Out<int32_t, 2> start_end_states,
                    Out<int32_t, 1> edge_offsets, int64_t blank, bool label_loop) {
  const int64_t batch = target_lengths.size(0), all = targets.size(0);
  int64_t rest = kHostReads ? all : 0;  // behind the last target
  if constexpr (kHostReads) {
    for (int64_t b = 0; b < batch; ++b) {
      const char* const of = "the targets that are left for it";
      if (target_lengths(b) < 0 || target_lengths(b) > rest) {
        refuse(element("target_lengths", b), target_lengths(b), 0, rest, of);
      }
      rest -= target_lengths(b);
    }
  }
  const In<I, 1> said{targets.data, {all - rest}, {targets.stride(0)}};
  check_labels("targets", said, blank, INT32_MAX, "a class");
  for_each_item(dev, 1, [=] KERNEL(Team team, int64_t) {
    if (team.rank() > 0) return;
    int64_t used = 0;
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t labels = min2(max2<int64_t>(target_lengths(b), 0), all - used);
      edge_offsets(b) = static_cast<int32_t>(5 * (used + b));
      start_end_states(0, b) = static_cast<int32_t>(2 * used + 3 * b);
      start_end_states(1, b) = static_cast<int32_t>(2 * (used + labels) + 3 * b + 2);
      used += labels;
    }
    edge_offsets(batch) = static_cast<int32_t>(5 * (used + batch));
  });
  for_each(dev, weights, [=] KERNEL(int64_t e) {  // what no sequence fills
    if (e >= edge_offsets(batch)) write_arc(edges, weights, e, Arc{0, 0, 0, true}, 0, 0);
  });
  for_each_item(dev, batch, [=] KERNEL(Team team, int64_t b) {
    const int64_t low = edge_offsets(b), high = edge_offsets(b + 1);
    const int64_t used = low / 5 - b, labels = (high - low) / 5 - 1;
    const CtcStates<I> states{
        {&targets(used), {labels}, {targets.stride(0)}}, labels, blank, label_loop};
    team.each(low, high, [=](int64_t e) {
      write_arc(edges, weights, e, states.edge(e - low), start_end_states(0, b), b);
    });
  });
}

}  // namespace nativeops
