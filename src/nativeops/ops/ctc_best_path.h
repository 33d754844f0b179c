// SPDX-License-Identifier: Apache-2.0
// CTC's best path. Declared in ctc_best_path.py.
#pragma once
#include "nativeops/devices/ctc.h"

namespace nativeops {

// The sums of a frame, and the first of its most probable classes; behind the last where a NaN
// leaves none.
template <class A>
struct BestClass {
  SoftmaxSums<A> of;
  int64_t first;
};
struct TeamFrames {
  template <class T>
  KERNEL static BestClass<Accum<T>> best(Team team, const In<T, 1>& row) {
    using A = Accum<T>;
    const int64_t n = row.size(0);
    const SoftmaxSums<A> of = softmax_sums(team, row);
    const A largest = of.largest;
    return {of, team.min(0, n, [=](int64_t c) { return A(row(c)) == largest ? c : n; })};
  }
};

// w[t] = argmax_c logits[t,b,c]      labels[b]: w without repeats and blanks
// scores[b] = Σ_t log softmax(logits[t,b])[w[t]]
template <class T, class Frames = TeamFrames>
void ctc_best_path(Device& dev, In<T, 3> logits, In<int32_t, 1> input_lengths,
                   Out<int32_t, 2> labels, Out<int32_t, 1> lengths, Out<T, 1> scores, int64_t blank,
                   bool label_loop) {
  using A = Accum<T>;
  const ctc::Problem<T, int32_t> problem{logits, {}, input_lengths, {}, blank, false, label_loop};
  problem.check();
  const int64_t steps = logits.size(0), batch = logits.size(1), classes = logits.size(2);
  auto best = dev.template workspace<int32_t>(steps * batch);
  auto score = dev.template workspace<A>(steps * batch);
  const auto ways = dense(best.data(), steps, batch);
  const auto log_probs = dense(score.data(), steps, batch);
  for_each_item(
      dev, steps * batch,
      [=] KERNEL(Team team, int64_t item) {
        const int64_t t = item / batch, b = item % batch;
        const auto [of, first] = Frames::template best<T>(team, at(at(logits, t), b));
        if (team.rank() != 0) return;
        ways(t, b) = static_cast<int32_t>(first < classes ? first : blank);
        log_probs(t, b) = of.largest == lowest<A>() ? of.largest : 0 - log(of.sum);
      },
      classes);
  for_each_item(dev, batch, [=] KERNEL(Team team, int64_t b) {
    const int64_t frames = problem.frames(b);
    const double total =
        team.sum(0, frames, [=](int64_t t) { return static_cast<double>(log_probs(t, b)); });
    if (team.rank() != 0) return;
    int64_t n = 0, before = blank;
    for (int64_t t = 0; t < frames; ++t) {
      const int64_t way = ways(t, b);
      if (way != blank && !(label_loop && way == before)) {
        labels(b, n++) = static_cast<int32_t>(way);
      }
      before = way;
    }
    lengths(b) = static_cast<int32_t>(n);
    scores(b) = T(static_cast<A>(total));
    for (; n < steps; ++n) labels(b, n) = -1;
  });
}

}  // namespace nativeops
