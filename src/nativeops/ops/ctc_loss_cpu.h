// SPDX-License-Identifier: Apache-2.0
// CTC, tuned for the CPU. Declared in ctc_loss.py. Frame by frame the softmax is summed up, and the
// few columns that the target needs are gathered while the frame is in the first cache; then all
// sequences are walked from both ends at once. The gradient takes 16 frames of a sequence at a
// time: it reads them once more, and writes each of its rows once. Where there are many sequences,
// it goes through the blocks of each from the last to the first, and nobody has to have walked back
// before.
#pragma once
#include "nativeops/devices/cpu/ctc_frames.h"
#include "nativeops/devices/cpu/ctc_grad.h"

namespace nativeops::tuned {

// Whether threads have enough sequences to share; results do not depend on how many threads there
// are.
template <class T, class I>
bool are_many(const ctc::Problem<T, I>& problem) {
  const int64_t steps = problem.logits.size(0), batch = problem.logits.size(1);
  return batch >= 32 && steps * batch >= 1024;
}

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
  const int64_t batch = logits.size(1);
  const int64_t work = logits.size(0) * batch * (targets.size(1) + 16);
  // From both ends, if the gradient needs the way back; else it is told by NaN that nobody went it.
  const int64_t ways = alphas && !are_many(problem) ? 2 : 1;
  if (betas && ways == 1) {
    for_each(dev, betas, [=](int64_t k, int64_t b, int64_t s, int64_t part) {
      betas(k, b, s, part) = not_a_number<float>();
    });
  }
  share_side_by_side(
      dev, ways * batch, work, [&] { return CtcWalk<A, CtcFrames<T, I>>(dev, frames); },
      [&](auto* walks, int64_t first, int64_t count) {
        for (int64_t k = 0; k < count; ++k) {
          const bool forth = (first + k) % ways == 0;
          walks[k].begin((first + k) / ways, forth, forth ? alphas : betas);
        }
        for (bool any = true; any;) {
          any = false;
          for (int64_t k = 0; k < count; ++k) any |= walks[k].next();
        }
        for (int64_t k = 0; k < count; ++k) {
          if (!walks[k].forth()) continue;
          const double score = walks[k].score();
          const int64_t b = walks[k].sequence();
          if (scores) ctc::set(scores, score, b);
          loss(b) = T(static_cast<A>(score == lowest<double>() && zero_infinity ? 0 : 0 - score));
        }
      });
}

// Whether the gradient goes back through each sequence itself: where they are many, or `ctc_losses`
// was called for many, of which these are some.
template <class T, class I>
bool walks_back(const ctc::Problem<T, I>& problem, In<float, 4> betas, In<float, 2> scores) {
  const int64_t batch = problem.logits.size(1);
  bool found = are_many(problem);
  for (int64_t b = 0; b < batch && !found; ++b) {
    if (problem.frames(b) == 0 || !is_finite(ctc::get(scores, b))) continue;
    found = betas(0, b, 0, 0) != betas(0, b, 0, 0);
  }
  return found;
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
  using Gradient = CtcGradient<T, I>;
  const auto make = [&] { return Gradient(dev, problem, log_sums, d_logits); };
  const auto begin = [&](Gradient& block, int64_t k, int64_t b, auto behind) {
    const double score = ctc::get(scores, b);
    block.begin(b, k, score, Accum<T>(d_loss(b)), [&](auto& states, auto before, auto later) {
      states.take(at(at(alphas, k), b), before);
      behind(states, later);
    });
  };
  if (!walks_back(problem, betas, scores)) {
    return share_side_by_side(
        dev, blocks * batch, work, make, [&](Gradient* some, int64_t first, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            const int64_t k = (first + i) / batch, b = (first + i) % batch;
            begin(some[i], k, b,
                  [&](auto& states, auto later) { states.take(at(at(betas, k), b), later); });
          }
          Gradient::run(some, count);
        });
  }
  share_side_by_side(dev, batch, work, make, [&](Gradient* some, int64_t first, int64_t count) {
    for (int64_t k = blocks - 1; k >= 0; --k) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t b = first + i;
        const bool last = (k + 1) * ctc::kBlock >= problem.frames(b);
        begin(some[i], k, b, [&](auto& states, auto later) {
          last ? states.start(later, states.n) : void(states.lower(later));
        });
      }
      Gradient::run(some, count);
    }
  });
}

}  // namespace nativeops::tuned
