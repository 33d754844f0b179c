// SPDX-License-Identifier: Apache-2.0
// What CTC reads of its logits on the CPU, and the walks over it from both ends.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

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

// The same with up to four items at a time, one for each of a thread's workers, which do them side
// by side: a step waits long for the one before it, and for nothing of another item.
// body(workers, first, count) has items first .. first + count - 1.
template <class Make, class F>
void share_side_by_side(Device& dev, int64_t items, int64_t steps, Make make, F body) {
  const int64_t group = std::clamp<int64_t>(items / dev.num_threads(), 1, 4);
  share(
      dev, ceil_div(items, group), steps,
      [&] {
        std::vector<decltype(make())> workers;
        workers.reserve(group);
        for (int64_t k = 0; k < group; ++k) workers.push_back(make());
        return workers;
      },
      [&](auto& workers, int64_t task) {
        const int64_t first = task * group;
        body(workers.data(), first, std::min(group, items - first));
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

// The logarithms of the probabilities that the targets need, frame by frame of each sequence.
template <class T, class I>
class CtcFrames {
  using A = Accum<T>;

 public:
  const ctc::Problem<T, I>& problem;

  CtcFrames(Device& dev, const ctc::Problem<T, I>& problem, Out<float, 3> log_sums)
      : problem(problem),
        width_(round_up(problem.targets.size(1) + 1, simd::kLanes<A>)),
        blanks_(dev.workspace<A>(problem.logits.size(0) * problem.logits.size(1))),
        labels_(dev.workspace<A>(problem.logits.size(0) * problem.logits.size(1) * width_)) {
    const auto x = problem.logits;
    // Along the batch or along time, whichever is nearer in memory.
    const int64_t steps = x.size(0), batch = x.size(1);
    const bool by_time = x.stride(0) < x.stride(1);
    share(
        dev, ceil_div(steps * batch, kRows), x.count(), [&] { return CtcClasses<T>(dev, x); },
        [&](CtcClasses<T>& classes, int64_t task) {
          Rows rows;
          const int64_t end = std::min((task + 1) * kRows, steps * batch);
          for (int64_t r = task * kRows; r < end; ++r) {
            const int64_t t = by_time ? r % steps : r / batch, b = by_time ? r / steps : r % batch;
            rows.add(t, b, gather(classes, t, b));
          }
          finish(rows, log_sums);
        });
  }

  CtcLogs<A> at(int64_t t, int64_t b) const {
    const int64_t place = b * problem.logits.size(0) + t;
    return {blanks_[place], labels_.data() + place * width_};
  }

 private:
  // Frames whose logarithms are taken together, as vectors.
  static constexpr int64_t kRows = 16;
  struct Rows {
    int64_t count = 0, t[kRows], b[kRows];
    double largest[kRows] = {}, sum[kRows] = {};

    void add(int64_t time, int64_t sequence, simd::SoftmaxSums<A> sums) {
      t[count] = time, b[count] = sequence;
      largest[count] = static_cast<double>(sums.largest),
      sum[count] = static_cast<double>(sums.sum);
      ++count;
    }
    [[gnu::flatten]] void take_logs(double* to) const {
      NATIVEOPS_IVDEP
      for (int64_t r = 0; r < kRows; ++r) to[r] = largest[r] + log(sum[r]);
    }
  };

  // What the softmax of a frame is made of, whose sum is 1 where there is nothing to divide by. The
  // logits that the target needs are copied while the frame is in the first cache.
  simd::SoftmaxSums<A> gather(const CtcClasses<T>& classes, int64_t t, int64_t b) const {
    const simd::SoftmaxSums<A> none{A(0), A(1)};
    if (t >= problem.frames(b)) return none;
    if (problem.classes() == 0) {
      put(t, b, lowest<A>(), [](int64_t) { return lowest<A>(); });
      return none;
    }
    const T* x = classes.at(t, b);
    const auto sums = problem.normalized ? none : simd::softmax_sums(x, problem.classes());
    put(t, b, A(x[problem.blank]),
        [=](int64_t i) { return A(x[static_cast<int64_t>(problem.targets(b, i))]); });
    return sums.sum == 0 ? none : sums;
  }

  template <class F>
  void put(int64_t t, int64_t b, A blank, F label) const {
    const int64_t place = b * problem.logits.size(0) + t, n = problem.labels(b);
    A* to = labels_.data() + place * width_;
    blanks_[place] = blank;
    for (int64_t i = 0; i < n; ++i) to[i] = label(i);
    std::fill(to + n, to + width_, lowest<A>());
  }

  void finish(const Rows& rows, Out<float, 3> log_sums) const {
    double sums[kRows];
    rows.take_logs(sums);
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t t = rows.t[r], b = rows.b[r];
      if (log_sums) ctc::set(log_sums, sums[r], t, b);
      if (t >= problem.frames(b)) continue;
      const ctc::Split<A> split(sums[r]);
      const int64_t place = b * problem.logits.size(0) + t;
      A* to = labels_.data() + place * width_;
      blanks_[place] = split.from(blanks_[place]);
      for (int64_t i = 0; i < width_; ++i) to[i] = split.from(to[i]);
    }
  }

  int64_t width_;
  Workspace<A> blanks_, labels_;
};

// A way through a sequence from one of its ends, frame by frame:
//   forth: alpha[t,s] = y[t,s] · Σ alpha[t-1,s'] over s' before s
//   back:  beta[t,s] = y[t,s] · Σ beta[t+1,s'] over s' after s
template <class A, class Frames>
class CtcWalk {
 public:
  CtcWalk(Device& dev, const Frames& frames)
      : frames_(&frames), states_(dev, frames.problem.targets.size(1), 2, 1) {}

  void begin(int64_t b, bool forth, Out<float, 4> kept) {
    states_.begin(frames_->problem, b);
    states_.start(states_.row(0), forth ? 0 : states_.n);
    b_ = b, forth_ = forth, kept_ = kept, base_ = 0;
    done_ = 0, frames_of_b_ = frames_->problem.frames(b);
    if (kept) keep_nothing();
  }

  // One frame further; false behind the last.
  bool next() {
    if (done_ == frames_of_b_) return false;
    const int64_t t = forth_ ? done_ : frames_of_b_ - 1 - done_;
    const auto from = states_.row(done_ % 2), to = states_.row(1 - done_ % 2);
    if (done_ == 0 || (forth_ ? t : t + 1) % ctc::kBlock == 0) {
      base_ += states_.lower(from);
      if (kept_) states_.keep(from, nativeops::at(nativeops::at(kept_, t / ctc::kBlock), b_));
    }
    const auto y = states_.frame(0, frames_->at(t, b_));
    forth_ ? states_.forth(from, to, y)
           : states_.back(from, to, y, [](int64_t, Wide<A>, Wide<A>) {});
    ++done_;
    return true;
  }

  int64_t sequence() const { return b_; }
  bool forth() const { return forth_; }
  // log p of the whole, behind the last frame.
  double score() const {
    const auto end = states_.row(done_ % 2);
    return base_ + log_of(end.blank(states_.n) + end.label(states_.n - 1));
  }

 private:
  // Zeros where the sequence has no frames.
  void keep_nothing() const {
    for (int64_t k = ceil_div(frames_of_b_, ctc::kBlock); k < kept_.size(0); ++k) {
      for (int64_t s = 0; s < kept_.size(2); ++s) ctc::set(kept_, 0.0, k, b_, s);
    }
  }

  const Frames* frames_;
  CtcStates<A> states_;
  Out<float, 4> kept_{};
  int64_t b_ = 0, done_ = 0, frames_of_b_ = 0;
  bool forth_ = true;
  double base_ = 0;
};

}  // namespace nativeops::tuned
