// SPDX-License-Identifier: Apache-2.0
// CTC, tuned for the CPU. Declared in ctc_loss.py. Frame by frame the softmax is summed up, and the
// few columns that the target needs are gathered while the frame is in the first cache. Where there
// are many sequences, a thread takes some of them forth, then back, 16 frames at a time; where
// there are few, they are walked from both ends at once, and then all blocks of 16 frames. The
// gradient reads the logits once more, and writes each of its rows once.
#pragma once
#include "nativeops/devices/cpu/ctc_slopes.h"

namespace nativeops::tuned {

// The results of a call.
template <class T, class I>
struct CtcLosses {
  using A = Accum<T>;
  using Walk = CtcWalk<A, CtcFrames<T, I>>;
  using Blocks = CtcSlopes<T, I>;

  Device& dev;
  const CtcFrames<T, I>& frames;
  Out<T, 1> loss;
  Out<float, 3> log_sums;
  Out<T, 3> slopes;
  bool zero_infinity;

  int64_t steps() const { return frames.problem.logits.size(0); }
  int64_t batch() const { return frames.problem.logits.size(1); }
  int64_t labels() const { return frames.problem.targets.size(1); }
  int64_t blocks() const { return ceil_div(steps(), ctc::kBlock); }
  int64_t work() const { return steps() * batch() * (labels() + 16); }

  // Whether threads have enough sequences to share; how many threads there are does not matter.
  bool are_many() const { return batch() >= 32; }

  // All steps of some walks, side by side; each(f) does f of every walk.
  template <class Each>
  static void run(Each each) {
    for (bool any = true; any;) {
      any = false;
      each([&](Walk& walk) { any |= walk.next(); });
    }
  }

  // What a walk forth found, and whether there are slopes. There are none beyond the sequence's
  // length; neither are there where no way says the target, nor where a number is NaN, which
  // log_sums tells the gradient.
  bool finish(const Walk& walk) const {
    const double score = walk.score();
    const int64_t b = walk.sequence(), end = frames.problem.frames(b);
    loss(b) = T(static_cast<A>(score == lowest<double>() && zero_infinity ? 0 : 0 - score));
    if (!slopes) return false;
    const bool found = is_finite(score);
    for (int64_t t = found ? end : 0; t < steps(); ++t) {
      for (int64_t k = 0; k <= labels(); ++k) slopes(t, b, k) = T(A(0));
    }
    const double mark = score == score ? highest<double>() : score;
    for (int64_t t = 0; t < end && !found; ++t) ctc::set(log_sums, mark, 0, t, b);
    return found;
  }

  // From both ends, if there are slopes to find: then all blocks of frames.
  void few() const {
    const int64_t ways = slopes ? 2 : 1, rows = slopes ? blocks() * batch() : 0;
    CtcKept kept(dev, labels(), 2 * rows);
    auto found = dev.workspace<int8_t>(batch());
    share_side_by_side(
        dev, ways * batch(), work(), [&] { return Walk(dev, frames); },
        [&](Walk* walks, int64_t first, int64_t count) {
          for (int64_t k = 0; k < count; ++k) {
            const int64_t b = (first + k) / ways, way = (first + k) % ways;
            walks[k].begin(b, way == 0, rows > 0 ? &kept : nullptr, way * rows + b, batch());
          }
          run([=](auto f) {
            for (int64_t k = 0; k < count; ++k) f(walks[k]);
          });
          for (int64_t k = 0; k < count; ++k) {
            if (walks[k].forth()) found[walks[k].sequence()] = finish(walks[k]);
          }
        });
    if (!slopes) return;
    share_side_by_side(
        dev, rows, 2 * work(), [&] { return Blocks(dev, frames, slopes); },
        [&](Blocks* some, int64_t first, int64_t count) {
          for (int64_t k = 0; k < count; ++k) {
            const int64_t row = first + k, b = row % batch();
            found[b] ? some[k].begin(b, row / batch(), kept, row, rows + row) : some[k].rest();
          }
          Blocks::run([=](auto f) {
            for (int64_t k = 0; k < count; ++k) f(some[k]);
          });
        });
  }

  // Each thread takes some sequences forth, and back block by block.
  struct Worker {
    Walk walk;
    CtcKept kept;
    Blocks block;
    bool found;
  };
  void many() const {
    const auto make = [&] {
      return Worker{Walk(dev, frames), CtcKept(dev, labels(), blocks()),
                    Blocks(dev, frames, slopes), false};
    };
    share_side_by_side(
        dev, batch(), 3 * work(), make, [&](Worker* some, int64_t first, int64_t count) {
          for (int64_t k = 0; k < count; ++k) some[k].walk.begin(first + k, true, &some[k].kept);
          run([=](auto f) {
            for (int64_t k = 0; k < count; ++k) f(some[k].walk);
          });
          for (int64_t k = 0; k < count; ++k) some[k].found = finish(some[k].walk);
          for (int64_t block = blocks() - 1; block >= 0; --block) {
            for (int64_t k = 0; k < count; ++k) {
              auto& one = some[k];
              one.found ? one.block.begin(first + k, block, one.kept, block, -1) : one.block.rest();
            }
            Blocks::run([=](auto f) {
              for (int64_t k = 0; k < count; ++k) f(some[k].block);
            });
          }
        });
  }
};

template <class T, class I>
void ctc_losses(Device& dev, In<T, 3> logits, In<I, 2> targets, In<int32_t, 1> input_lengths,
                In<int32_t, 1> target_lengths, Out<T, 1> loss, Out<float, 3> log_sums,
                Out<T, 3> slopes, int64_t blank, bool normalized, bool label_loop,
                bool zero_infinity) {
  const ctc::Problem<T, I> problem{logits, targets,    input_lengths, target_lengths,
                                   blank,  normalized, label_loop};
  problem.check();
  const CtcFrames<T, I> frames(dev, problem, log_sums);
  const CtcLosses<T, I> results{dev, frames, loss, log_sums, slopes, zero_infinity};
  if (slopes && results.are_many()) return results.many();
  results.few();
}

// to[c] = d_loss · exp(x[c] - log_sum)
template <class T, class A>
[[gnu::flatten]] void write_softmax(const T* x, int64_t classes, LogSum<A> log_sum, A d_loss,
                                    T* to) {
  NATIVEOPS_IVDEP
  for (int64_t c = 0; c < classes; ++c) {
    to[c] = T(d_loss * simd::exp_negative(log_sum.from(ctc::logit(A(x[c])))));
  }
}

template <class T, class I>
void ctc_losses_grad(Device& dev, In<T, 3> logits, In<I, 2> targets, In<float, 3> log_sums,
                     In<T, 3> slopes, In<T, 1> d_loss, In<int32_t, 1> input_lengths,
                     In<int32_t, 1> target_lengths, Out<T, 3> d_logits, int64_t blank,
                     bool normalized) {
  using A = Accum<T>;
  const ctc::Problem<T, I> problem{logits, targets,    input_lengths, target_lengths,
                                   blank,  normalized, true};
  problem.check(true);
  const int64_t classes = logits.size(2);
  struct Worker {
    LogitRows<T> classes;
    Workspace<T> row;
  };
  const auto frame = [=](const Worker& worker, int64_t t, int64_t b) {
    const auto to = at(at(d_logits, t), b);
    const LogSum<A> log_sum = ctc::get<A>(log_sums, t, b);
    const bool beyond = t >= problem.frames(b);
    const bool some = !beyond && is_finite(log_sum.largest) && classes > 0;
    if (!some || normalized) {
      const A value = !beyond && log_sum.largest != log_sum.largest ? log_sum.largest : A(0);
      for (int64_t c = 0; c < classes; ++c) to(c) = T(value);
    } else {
      T* row = worker.row.data() == nullptr ? to.data : worker.row.data();
      write_softmax(worker.classes.at(t, b), classes, log_sum, A(d_loss(b)), row);
      for (int64_t c = 0; c < classes && row != to.data; ++c) to(c) = row[c];
    }
    if (!some) return;
    // From the last label: where a class has several, the first has its slope.
    const auto slope = at(at(slopes, t), b);
    for (int64_t i = problem.labels(b); i > 0; --i) {
      to(static_cast<int64_t>(targets(b, i - 1))) = T(A(d_loss(b)) * A(slope(i)));
    }
    to(blank) = T(A(d_loss(b)) * A(slope(0)));
  };
  constexpr int64_t kFrames = 16;
  share(
      dev, ceil_div(logits.size(0) * logits.size(1), kFrames), logits.count(),
      [&] {
        return Worker{LogitRows<T>(dev, logits),
                      dev.workspace<T>(d_logits.stride(2) == 1 ? 0 : classes)};
      },
      [&](const Worker& worker, int64_t task) {
        for_each_frame(logits, task * kFrames, kFrames,
                       [&](int64_t t, int64_t b) { frame(worker, t, b); });
      });
}

}  // namespace nativeops::tuned
