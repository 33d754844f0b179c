// SPDX-License-Identifier: Apache-2.0
// What CTC reads of its logits on the CPU, and the walks over it from both ends.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "nativeops/devices/cpu/ctc.h"
#include "nativeops/devices/cpu/logit_rows.h"
#include "nativeops/devices/cpu/share.h"
#include "nativeops/devices/cpu/softmax.h"

namespace nativeops::tuned {

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
        rests_(dev.workspace<double>(problem.logits.size(0) * problem.logits.size(1))),
        labels_(dev.workspace<A>(problem.logits.size(0) * problem.logits.size(1) * width_)) {
    const auto x = problem.logits;
    share(
        dev, ceil_div(x.size(0) * x.size(1), kRows), x.count(),
        [&] { return LogitRows<T>(dev, x); },
        [&](LogitRows<T>& classes, int64_t task) {
          Rows rows;
          for_each_frame(x, task * kRows, kRows,
                         [&](int64_t t, int64_t b) { rows.add(t, b, gather(classes, t, b)); });
          finish(rows, log_sums);
        });
  }

  int64_t width() const { return width_; }  // of its logarithms, whole vectors
  CtcLogs<A> at(int64_t t, int64_t b) const {
    const int64_t place = b * problem.logits.size(0) + t;
    return {blanks_[place], labels_.data() + place * width_, static_cast<A>(rests_[place])};
  }
  // By how much the logarithms of a whole way are too large.
  double rest(int64_t b) const {
    const double* rests = rests_.data() + b * problem.logits.size(0);
    return std::accumulate(rests, rests + problem.frames(b), 0.0);
  }

  // Whether plain doubles can hold what frames first .. end - 1 do: see Plain.
  bool are_plain(int64_t first, int64_t end, int64_t b) const {
    const A all = reach(first, end, b);  // nearly always enough
    const double each = std::min(Plain::kFrame, Plain::kReach / static_cast<double>(end - first));
    if (static_cast<double>(all) <= each) return true;
    double sum = 0;
    for (int64_t t = first; t < end; ++t) sum += static_cast<double>(reach(t, t + 1, b));
    return static_cast<double>(all) <= Plain::kFrame && sum <= Plain::kReach;
  }

 private:
  // Frames whose logarithms are taken together, as vectors.
  static constexpr int64_t kRows = 16;
  struct Rows {
    int64_t count = 0, t[kRows], b[kRows];
    double largest[kRows] = {}, sum[kRows] = {};

    void add(int64_t time, int64_t sequence, SoftmaxSums<A> sums) {
      t[count] = time, b[count] = sequence;
      largest[count] = static_cast<double>(sums.largest),
      sum[count] = static_cast<double>(sums.sum);
      ++count;
    }
    [[gnu::flatten]] void take_logs(double* to) const {
      NATIVEOPS_IVDEP
      for (int64_t r = 0; r < kRows; ++r) to[r] = log(sum[r]);
    }
  };

  // What the softmax of a frame is made of, whose sum is 1 where there is nothing to divide by. The
  // logits that the target needs are copied while the frame is in the first cache.
  SoftmaxSums<A> gather(const LogitRows<T>& classes, int64_t t, int64_t b) const {
    const SoftmaxSums<A> none{A(0), A(1)};
    if (t >= problem.frames(b)) return none;
    if (problem.classes() == 0) {
      put(t, b, lowest<A>(), [](int64_t) { return lowest<A>(); });
      return none;
    }
    const T* x = classes.at(t, b);
    const auto sums = problem.normalized ? none : softmax(x);
    put(t, b, A(x[problem.blank]),
        [=](int64_t i) { return A(x[static_cast<int64_t>(problem.targets(b, i))]); });
    if (problem.normalized) {
      const A most = largest(b * problem.logits.size(0) + t);
      return {most == most ? A(0) : most, A(1)};
    }
    return sums.sum == 0 ? none : sums;
  }

  SoftmaxSums<A> softmax(const T* x) const {
    const auto sums = simd::softmax_sums(x, problem.classes());
    const A most = ctc::logit(sums.largest);
    if (!(most < sums.largest || most > sums.largest)) return sums;
    A sum = 0;
    for (int64_t c = 0; c < problem.classes(); ++c) sum += exp(ctc::logit(A(x[c])) - most);
    return {most, sum};
  }

  // How many powers of two the smallest probability but 0 is below 1. Infinite if one is not one,
  // NaN if one is.
  [[gnu::flatten]] A reach(int64_t first, int64_t end, int64_t b) const {
    const int64_t place = b * problem.logits.size(0) + first, count = end - first;
    const auto below = [](A x) {
      return x == lowest<A>() ? A(0) : x > A(1) ? highest<A>() : x * A(-0x1.71547652b82fep+0);
    };
    const auto most = [=](const A* logs, int64_t n, A init) {
      return fold_row<A>(
          n, init, [=](int64_t i) { return below(logs[i]); },
          [](auto a, auto b) { return max_or_nan(a, b); });
    };
    const A of_blanks = most(blanks_.data() + place, count, A(0));
    return most(labels_.data() + place * width_, count * width_, of_blanks);
  }

  // Whether a frame has a logit for the target between -infinity and a bound.
  [[gnu::flatten]] bool has_below(int64_t place, A bound) const {
    const auto is_below = [=](A x) { return int32_t{x < bound} & int32_t{x > lowest<A>()}; };
    const A* labels = labels_.data() + place * width_;
    int32_t found = is_below(blanks_[place]);
    for (int64_t i = 0; i < width_; ++i) found |= is_below(labels[i]);
    return found != 0;
  }

  // The smallest of the logits that a frame has for the target, but for those of -infinity.
  A least(int64_t place) const {
    const A* labels = labels_.data() + place * width_;
    A low = blanks_[place] > lowest<A>() ? blanks_[place] : highest<A>();
    for (int64_t i = 0; i < width_; ++i) low = labels[i] > lowest<A>() ? min2(low, labels[i]) : low;
    return low;
  }

  // What is taken off the logits of a frame, and what is left to take off. Where a float is so far
  // below that the difference has no digits for the sum, as of a class masked with -1e9, all get
  // what can be taken off it exactly: else ways by other frames would differ by what is rounded.
  // But where a logarithm counts as the bound of `wide_exp` there is nothing that could differ.
  struct Shares {
    A taken;
    double left;
  };
  Shares shares(int64_t place, double all) const {
    const Shares none{A(0), 0};
    const A sum = static_cast<A>(all);
    if (sizeof(A) > sizeof(float) || !has_below(place, sum - A(Plain::kFrame))) return none;
    const A low = least(place), taken = low - (low - sum);
    if (low - sum < A(-kMostLogarithm)) return none;
    const double left = all - static_cast<double>(taken);
    return left > -0x1p20 && left < 0x1p20 ? Shares{taken, left} : none;
  }

  // The largest of the logits that a frame has for the target; NaN if one of them is.
  A largest(int64_t place) const {
    const A* labels = labels_.data() + place * width_;
    return fold_row<A>(
        width_, blanks_[place], [=](int64_t i) { return labels[i]; },
        [](auto a, auto b) { return max_or_nan(a, b); });
  }

  template <class F>
  void put(int64_t t, int64_t b, A blank, F label) const {
    const int64_t place = b * problem.logits.size(0) + t, n = problem.labels(b);
    A* to = labels_.data() + place * width_;
    blanks_[place] = ctc::logit(blank);
    for (int64_t i = 0; i < n; ++i) to[i] = ctc::logit(label(i));
    std::fill(to + n, to + width_, lowest<A>());
  }

  void finish(const Rows& rows, Out<float, 3> log_sums) const {
    double logs[kRows];
    rows.take_logs(logs);
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t t = rows.t[r], b = rows.b[r];
      if (log_sums) ctc::set(log_sums, rows.largest[r], logs[r], t, b);
      if (t >= problem.frames(b)) continue;
      const LogSum<A> log_sum{static_cast<A>(rows.largest[r]), static_cast<A>(logs[r])};
      const int64_t place = b * problem.logits.size(0) + t;
      A* to = labels_.data() + place * width_;
      const Shares off = shares(place, rows.largest[r] + logs[r]);
      rests_[place] = off.left;
      const LogSum<A> now = off.left == 0 ? log_sum : LogSum<A>{off.taken, A(0)};
      blanks_[place] = now.held_from(blanks_[place]);
      for (int64_t i = 0; i < width_; ++i) to[i] = now.held_from(to[i]);
    }
  }

  int64_t width_;
  Workspace<A> blanks_;
  Workspace<double> rests_;
  Workspace<A> labels_;
};

// A way through a sequence from one of its ends, frame by frame:
//   forth: alpha[t,s] = y[t,s] · Σ alpha[t-1,s'] over s' before s
//   back:  beta[t,s] = y[t,s] · Σ beta[t+1,s'] over s' after s
template <class A, class Frames>
class CtcWalk {
 public:
  CtcWalk(Device& dev, const Frames& frames)
      : frames_(&frames),
        wide_(dev, frames.problem.targets.size(1), 2, 1),
        plain_(dev, frames.problem.targets.size(1), 2, 1) {}

  // `kept` gets the weights before (or, on the way back, behind) block k at first + k · step.
  void begin(int64_t b, bool forth, CtcKept* kept, int64_t first = 0, int64_t step = 1) {
    b_ = b, forth_ = forth, kept_ = kept, first_ = first, step_ = step;
    done_ = 0, frames_of_b_ = frames_->problem.frames(b), exponent_ = 0, is_plain_ = true;
    plain_.begin(frames_->problem, b);
    plain_.start(plain_.row(0), forth ? 0 : plain_.n);
  }

  // One frame further; false behind the last.
  bool next() {
    if (done_ == frames_of_b_) return false;
    const int64_t t = forth_ ? done_ : frames_of_b_ - 1 - done_;
    if (done_ == 0 || (forth_ ? t : t + 1) % ctc::kBlock == 0) begin_block(t);
    is_plain_ ? step(plain_, t) : step(wide_, t);
    ++done_;
    return true;
  }

  int64_t sequence() const { return b_; }
  bool forth() const { return forth_; }
  // log p of the whole, behind the last frame.
  double score() const { return is_plain_ ? score(plain_) : score(wide_); }

 private:
  // Every block of frames is walked in the form that it needs.
  void begin_block(int64_t t) {
    const int64_t first = t / ctc::kBlock * ctc::kBlock;
    const int64_t end = forth_ ? std::min(first + ctc::kBlock, frames_of_b_) : t + 1;
    const bool fits = is_plain_ ? lower(plain_) : lower(wide_);
    const bool plain = fits && frames_->are_plain(first, end, b_);
    if (plain != is_plain_) plain ? change(wide_, plain_) : change(plain_, wide_);
    is_plain_ = plain;
    if (kept_ == nullptr) return;
    plain ? keep(plain_, t / ctc::kBlock) : keep(wide_, t / ctc::kBlock);
  }
  template <class States>
  bool lower(const States& states) {
    const auto row = states.row(done_ % 2);
    exponent_ += states.lower(row);
    return states.fits(row);
  }
  template <class States>
  void keep(const States& states, int64_t block) const {
    kept_->keep(first_ + block * step_, states, states.row(done_ % 2));
  }
  template <class From, class To>
  void change(const From& from, To& to) {
    to.begin(frames_->problem, b_);
    exponent_ += to.convert(from.row(done_ % 2), to.row(done_ % 2));
  }

  template <class States>
  void step(States& states, int64_t t) {
    const auto from = states.row(done_ % 2), to = states.row(1 - done_ % 2);
    const auto y = states.frame(0, frames_->at(t, b_));
    forth_ ? states.forth(from, to, y) : states.back(from, to, y, [](auto...) {});
  }

  template <class States>
  double score(const States& states) const {
    const auto end = states.row(done_ % 2);
    auto all = states.to_wide(end.blank[states.n] + end.label[states.n - 1]);
    all.e += exponent_;
    return log_of(all) - frames_->rest(b_);
  }

  const Frames* frames_;
  CtcStates<Wide, A> wide_;
  CtcStates<double, A> plain_;
  CtcKept* kept_ = nullptr;
  int64_t first_ = 0, step_ = 1, b_ = 0, done_ = 0, frames_of_b_ = 0;
  bool forth_ = true, is_plain_ = true;
  double exponent_ = 0;  // weights are 2^exponent_ times those in the row
};

}  // namespace nativeops::tuned
