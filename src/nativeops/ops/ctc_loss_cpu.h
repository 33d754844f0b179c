// SPDX-License-Identifier: Apache-2.0
// CTC, tuned for the CPU. Declared in ctc_loss.py. Frame by frame the softmax is summed up, and the
// few columns that the target needs are gathered while the frame is in the first cache; then all
// sequences are walked from both ends at once. The gradient takes 16 frames of a sequence at a
// time: it reads them once more, and writes each of its rows once.
#pragma once
#include "nativeops/devices/cpu/ctc_frames.h"
#include "nativeops/devices/cpu/ctc_grad.h"

namespace nativeops::tuned {

template <class T, class I>
void ctc_losses(Device& dev, In<T, 3> logits, In<I, 2> targets, In<int32_t, 1> input_lengths,
                In<int32_t, 1> target_lengths, Out<T, 1> loss, Out<float, 3> log_sums,
                Out<float, 4> alphas, Out<float, 4> betas, Out<float, 2> scores, int64_t blank,
                bool normalized, bool label_loop, bool zero_infinity) {
  using A = Accum<T>;
  const ctc::Problem<T, I> problem{logits, targets,    input_lengths, target_lengths,
                                   blank,  normalized, label_loop};
  problem.check();
  const CtcFrames<T, I> frames(dev, problem, log_sums);
  const int64_t batch = logits.size(1), labels = targets.size(1);
  const int64_t work = logits.size(0) * batch * (labels + 16);
  // From both ends; without a gradient nobody needs the way back.
  share(
      dev, alphas ? 2 * batch : batch, work, [&] { return CtcStates<A>(dev, labels, 2, 1); },
      [&](CtcStates<A>& states, int64_t task) {
        const int64_t b = task % batch;
        states.begin(problem, b);
        if (task >= batch) return walk_back(states, frames, b, betas);
        const double score = walk_forth(states, frames, b, alphas);
        if (scores) ctc::set(scores, score, b);
        loss(b) = T(static_cast<A>(score == lowest<double>() && zero_infinity ? 0 : 0 - score));
      });
}

template <class T, class I>
void ctc_losses_grad(Device& dev, In<T, 3> logits, In<I, 2> targets, In<float, 3> log_sums,
                     In<float, 4> alphas, In<float, 4> betas, In<float, 2> scores, In<T, 1> d_loss,
                     In<int32_t, 1> input_lengths, In<int32_t, 1> target_lengths,
                     Out<T, 3> d_logits, int64_t blank, bool normalized, bool label_loop) {
  const ctc::Problem<T, I> problem{logits, targets,    input_lengths, target_lengths,
                                   blank,  normalized, label_loop};
  problem.check();
  const int64_t batch = logits.size(1);
  const int64_t blocks = ceil_div(logits.size(0), ctc::kBlock);
  const int64_t work = logits.size(0) * batch * (logits.size(2) + 4 * targets.size(1));
  share(
      dev, blocks * batch, work,
      [&] { return CtcGradient<T, I>(dev, problem, log_sums, d_logits); },
      [&](CtcGradient<T, I>& gradient, int64_t task) {
        const int64_t k = task / batch, b = task % batch;
        const double score = ctc::get(scores, b);
        gradient.run(b, k, score, Accum<T>(d_loss(b)), [&](auto& states, auto first, auto last) {
          states.take(at(at(alphas, k), b), first);
          states.take(at(at(betas, k), b), last);
        });
      });
}

}  // namespace nativeops::tuned
