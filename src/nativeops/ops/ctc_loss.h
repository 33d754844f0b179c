// SPDX-License-Identifier: Apache-2.0
// CTC: the loss of each sequence, and its gradient. Declared in ctc_loss.py.
#pragma once
#include "nativeops/devices/ctc_grad.h"

namespace nativeops {

// log_sums[t,b] = log Σ_c exp(logits[t,b,c]); scores[b] = log p(targets[b] | logits[:,b])
template <class T, class I>
void ctc_losses(Device& dev, In<T, 3> logits, In<I, 2> targets, In<int32_t, 1> input_lengths,
                In<int32_t, 1> target_lengths, Out<T, 1> loss, Out<float, 3> log_sums,
                Out<float, 4> alphas, Out<float, 4> betas, Out<float, 2> scores, int64_t blank,
                bool normalized, bool label_loop, bool zero_infinity) {
  using A = Accum<T>;
  const ctc::Problem<T, I> problem{logits, targets,    input_lengths, target_lengths,
                                   blank,  normalized, label_loop};
  problem.check();
  const int64_t batch = logits.size(1), states = problem.most_states();
  auto own = dev.template workspace<float>(log_sums ? 0 : 3 * logits.size(0) * batch);
  const auto sums = log_sums ? log_sums : dense(own.data(), logits.size(0), batch, 3);
  ctc::sum_frames<A>(dev, problem, sums);
  // Without a gradient nobody needs the way back.
  const int64_t items = alphas ? 2 * batch : batch, count = 4 * states;
  for_each_item<A>(dev, items, count, [=] KERNEL(Team team, int64_t item, View<A, 1> scratch) {
    const ctc::Walk<T, I> walk{problem, item % batch, sums};
    const auto row = dense(scratch.data, 2, 2, states);
    if (item >= batch) return walk.back(team, row, betas);
    const double score = walk.forth(team, row, alphas);
    if (team.rank() != 0) return;
    if (scores) ctc::set(scores, score, walk.b);
    const double value = score == -Extreme<double>::highest && zero_infinity ? 0 : 0 - score;
    loss(walk.b) = T(static_cast<A>(value));
  });
}

// d_logits[t,b,c] = d_loss[b] (exp(logits[t,b,c] - log_sums[t,b]) - Σ_{s: label(s) = c} p(s at t))
//   p(s at t) = alpha[t,s] · Σ_{s' after s} beta[t+1,s'] / Σ_s (of the same)
template <class T, class I>
void ctc_losses_grad(Device& dev, In<T, 3> logits, In<I, 2> targets, In<float, 3> log_sums,
                     In<float, 4> alphas, In<float, 4> betas, In<float, 2> scores, In<T, 1> d_loss,
                     In<int32_t, 1> input_lengths, In<int32_t, 1> target_lengths,
                     Out<T, 3> d_logits, int64_t blank, bool normalized, bool label_loop) {
  using A = Accum<T>;
  const ctc::Problem<T, I> problem{logits, targets,    input_lengths, target_lengths,
                                   blank,  normalized, label_loop};
  problem.check();
  const int64_t batch = logits.size(1), states = problem.most_states();
  const int64_t blocks = (logits.size(0) + ctc::kBlock - 1) / ctc::kBlock;
  const int64_t count = (2 * (ctc::kBlock + 1) + 4 + 1) * states + 2 * targets.size(1);
  for_each_item<A>(
      dev, blocks * batch, count, [=] KERNEL(Team team, int64_t item, View<A, 1> scratch) {
        const int64_t b = item % batch, block = item / batch;
        const ctc::Walk<T, I> walk{problem, b, log_sums};
        const ctc::Gradient<T, I> gradient{walk, block, scratch.data, d_logits, A(d_loss(b))};
        gradient.run(team, alphas, betas, ctc::get(scores, b));
      });
}

}  // namespace nativeops
