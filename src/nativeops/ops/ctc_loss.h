// SPDX-License-Identifier: Apache-2.0
// CTC: the loss of each sequence, and its gradient. Declared in ctc_loss.py.
#pragma once
#include "nativeops/devices/ctc_slopes.h"

namespace nativeops {

// log_sums[t,b] = log Σ_c exp(logits[t,b,c]); score = log p(targets[b] | logits[:,b])
// slopes[t,b]: softmax - Σ_s p(s at t) of the classes of the target;
//   p(s at t) = alpha[t,s] · Σ_{s' after s} beta[t+1,s'] / Σ_s (of the same)
template <class T, class I>
void ctc_losses(Device& dev, In<T, 3> logits, In<I, 2> targets, In<int32_t, 1> input_lengths,
                In<int32_t, 1> target_lengths, Out<T, 1> loss, Out<float, 3> log_sums,
                Out<T, 3> slopes, int64_t blank, bool normalized, bool label_loop,
                bool zero_infinity) {
  using A = Accum<T>;
  const ctc::Problem<T, I> problem{logits, targets,    input_lengths, target_lengths,
                                   blank,  normalized, label_loop};
  problem.check();
  const int64_t steps = logits.size(0), batch = logits.size(1), states = problem.most_states();
  auto own_sums = dev.template workspace<float>(log_sums ? 0 : 3 * steps * batch);
  const auto sums = log_sums ? log_sums : dense(own_sums.data(), steps, batch, 3);
  ctc::sum_frames(dev, problem, sums);
  // Without a gradient nobody needs the way back, nor what lies between.
  const int64_t ways = slopes ? 2 : 1, blocks = ceil_div(steps, ctc::kBlock);
  auto memory = dev.template workspace<double>(slopes ? 2 * blocks * batch * 2 * states : 0);
  auto own_scores = dev.template workspace<double>(batch);
  const auto kept = dense(memory.data(), 2, blocks, batch, 2, states);
  const auto scores = dense(own_scores.data(), batch);
  for_each_item<double>(
      dev, ways * batch, 4 * states, [=] KERNEL(Team team, int64_t item, View<double, 1> scratch) {
        const ctc::Walk<T, I> walk{problem, item % batch, sums};
        const auto row = dense(scratch.data, 2, 2, states);
        if (item >= batch) return walk.back(team, row, at(kept, 1));
        const double score = walk.forth(team, row, at(kept, 0));
        if (team.rank() != 0) return;
        scores(walk.b) = score;
        const double value = score == -Extreme<double>::highest && zero_infinity ? 0 : 0 - score;
        loss(walk.b) = T(static_cast<A>(value));
      });
  if (!slopes) return;
  auto own_links = dev.template workspace<int32_t>(2 * batch * targets.size(1));
  const ctc::Links links = dense(own_links.data(), batch, 2, targets.size(1));
  ctc::link(dev, problem, links);
  const int64_t count = ctc::Slopes<T, I>::count(states);
  for_each_item<double>(
      dev, blocks * batch, count, [=] KERNEL(Team team, int64_t item, View<double, 1> scratch) {
        const int64_t b = item % batch, block = item / batch;
        const auto ends = [=](int64_t way) { return at(at(at(kept, way), block), b); };
        const ctc::Walk<T, I> walk{problem, b, sums};
        const ctc::Slopes<T, I> some{walk, block, ends(0), ends(1), scratch.data, links, slopes};
        some.run(team, scores(b));
        if (!is_finite(scores(b))) some.mark(team, sums, scores(b));
      });
}

// d_logits[t,b,c] = d_loss[b] (exp(logits[t,b,c] - log_sums[t,b]) - posterior of c), where slopes
// have the difference
template <class T, class I>
void ctc_losses_grad(Device& dev, In<T, 3> logits, In<I, 2> targets, In<float, 3> log_sums,
                     In<T, 3> slopes, In<T, 1> d_loss, In<int32_t, 1> input_lengths,
                     In<int32_t, 1> target_lengths, Out<T, 3> d_logits, int64_t blank,
                     bool normalized) {
  using A = Accum<T>;
  const ctc::Problem<T, I> problem{logits, targets,    input_lengths, target_lengths,
                                   blank,  normalized, true};
  problem.check(true);
  const int64_t batch = logits.size(1), classes = logits.size(2);
  for_each_item(
      dev, logits.size(0) * batch,
      [=] KERNEL(Team team, int64_t item) {
        const int64_t t = item / batch, b = item % batch;
        const LogSum<A> log_sum = ctc::get<A>(log_sums, t, b);
        if (t >= problem.frames(b) || !is_finite(log_sum.largest) || classes == 0) {
          const bool nan = t < problem.frames(b) && log_sum.largest != log_sum.largest;
          const A value = nan ? log_sum.largest : A(0);
          team.each(0, classes, [=](int64_t c) { d_logits(t, b, c) = T(value); });
          return;
        }
        team.each(0, classes, [=](int64_t c) {
          d_logits(t, b, c) = T(A(d_loss(b)) * problem.softmax(t, b, c, log_sum));
        });
        team.sync();
        const int64_t last = problem.labels(b);
        team.each(0, last + 1, [=](int64_t from_last) {
          const int64_t i = last - from_last, c = i == 0 ? blank : problem.label(b, i - 1);
          const A slope = A(slopes(t, b, i));
          if (slope != ctc::kAgain) d_logits(t, b, c) = T(A(d_loss(b)) * slope);
        });
      },
      classes);
}

}  // namespace nativeops
