// SPDX-License-Identifier: Apache-2.0
// What CTC reads of its logits on the CPU, and the walks over it from both ends.
#pragma once
#include <atomic>
#include <cstdint>

#include "nativeops/devices/cpu/ctc.h"
#include "nativeops/devices/cpu/softmax.h"

namespace nativeops::tuned {

// Threads take tasks until none is left; each has a worker, with memory of its own. `steps` is how
// much work all of it is.
template <class Make, class F>
void share(Device& dev, int64_t tasks, int64_t steps, Make make, F body) {
  const int64_t wanted = steps > kWorthWaking ? dev.num_threads() : 1;
  std::atomic<int64_t> next{0};
  dev.parallel(std::min(tasks, wanted), [&](int64_t) {
    auto worker = make();
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      body(worker, task);
    }
  });
}

// The classes of a frame side by side: where they are, or copied.
template <class T>
class CtcClasses {
 public:
  CtcClasses(Device& dev, In<T, 3> logits)
      : logits_(logits), copy_(dev.workspace<T>(logits.stride(2) == 1 ? 0 : logits.size(2))) {}

  const T* at(int64_t t, int64_t b) const {
    if (copy_.data() == nullptr) return &logits_(t, b, 0);
    for (int64_t c = 0; c < logits_.size(2); ++c) copy_[c] = logits_(t, b, c);
    return copy_.data();
  }

 private:
  In<T, 3> logits_;
  Workspace<T> copy_;
};

// log Σ exp(x[i]); 0 where all are -infinity, NaN where one is NaN or infinite.
template <class T>
double log_sum(const T* x, int64_t n) {
  const auto row = simd::softmax_sums(x, n);
  return row.sum == 0 ? 0.0 : static_cast<double>(row.largest) + log(static_cast<double>(row.sum));
}

// The logarithms of the probabilities that the targets need, frame by frame of each sequence: of
// the blank, then of each label.
template <class T, class I>
class CtcFrames {
  using A = Accum<T>;

 public:
  const ctc::Problem<T, I>& problem;

  CtcFrames(Device& dev, const ctc::Problem<T, I>& problem, Out<float, 3> log_sums)
      : problem(problem),
        width_(problem.targets.size(1) + 1),
        log_probs_(dev.workspace<A>(problem.logits.size(0) * problem.logits.size(1) * width_)) {
    const auto x = problem.logits;
    const int64_t steps = x.size(0), batch = x.size(1), kRows = 16;
    // Along the batch or along time, whichever is nearer in memory.
    const bool by_time = x.stride(0) < x.stride(1);
    share(
        dev, ceil_div(steps * batch, kRows), x.count(), [&] { return CtcClasses<T>(dev, x); },
        [&](CtcClasses<T>& classes, int64_t task) {
          const int64_t end = std::min((task + 1) * kRows, steps * batch);
          for (int64_t r = task * kRows; r < end; ++r) {
            const int64_t t = by_time ? r % steps : r / batch, b = by_time ? r / steps : r % batch;
            take(classes, t, b, log_sums);
          }
        });
  }

  const A* at(int64_t t, int64_t b) const {
    return log_probs_.data() + (b * problem.logits.size(0) + t) * width_;
  }

 private:
  void take(const CtcClasses<T>& classes, int64_t t, int64_t b, Out<float, 3> log_sums) const {
    A* to = const_cast<A*>(at(t, b));
    if (t >= problem.frames(b)) {
      if (log_sums) ctc::set(log_sums, 0.0, t, b);
      return;
    }
    const int64_t n = problem.labels(b);
    const T* x = problem.classes() > 0 ? classes.at(t, b) : nullptr;
    const double sum = problem.normalized ? 0 : log_sum(x, problem.classes());
    if (log_sums) ctc::set(log_sums, sum, t, b);
    if (problem.classes() == 0) return std::fill(to, to + n + 1, lowest<A>());
    const ctc::Split<A> split(sum);
    to[0] = split.from(A(x[problem.blank]));
    for (int64_t i = 0; i < n; ++i) {
      to[1 + i] = split.from(A(x[static_cast<int64_t>(problem.targets(b, i))]));
    }
  }

  int64_t width_;
  Workspace<A> log_probs_;
};

// Zeros where a sequence has no frames.
inline void keep_nothing(Out<float, 4> kept, int64_t frames, int64_t b) {
  for (int64_t k = ceil_div(frames, ctc::kBlock); k < kept.size(0); ++k) {
    for (int64_t s = 0; s < kept.size(2); ++s) ctc::set(kept, 0.0, k, b, s);
  }
}

// alpha[t,s] = y[t,s] · Σ alpha[t-1,s'] over s' before s; returns log p of the whole.
template <class A, class Frames>
double walk_forth(const CtcStates<A>& states, const Frames& frames, int64_t b, Out<float, 4> kept) {
  const int64_t last = frames.problem.frames(b), n = states.n;
  double base = 0;
  states.start(states.row(0), 0);
  for (int64_t t = 0; t < last; ++t) {
    const auto from = states.row(t % 2);
    if (t % ctc::kBlock == 0) {
      base += states.lower(from);
      if (kept) states.keep(from, at(at(kept, t / ctc::kBlock), b));
    }
    states.forth(from, states.row(1 - t % 2), states.frame(0, frames.at(t, b)));
  }
  if (kept) keep_nothing(kept, last, b);
  const auto end = states.row(last % 2);
  return base + log_of(end.blank(n) + end.label(n - 1));
}

// beta[t,s] = y[t,s] · Σ beta[t+1,s'] over s' after s
template <class A, class Frames>
void walk_back(const CtcStates<A>& states, const Frames& frames, int64_t b, Out<float, 4> kept) {
  const int64_t last = frames.problem.frames(b);
  keep_nothing(kept, last, b);
  states.start(states.row(last % 2), states.n);
  for (int64_t t = last - 1; t >= 0; --t) {
    const auto from = states.row(1 - t % 2);
    if (t == last - 1 || (t + 1) % ctc::kBlock == 0) {
      states.lower(from);
      states.keep(from, at(at(kept, t / ctc::kBlock), b));
    }
    states.back(from, states.row(t % 2), states.frame(0, frames.at(t, b)),
                [](int64_t, Wide<A>, Wide<A>) {});
  }
}

}  // namespace nativeops::tuned
