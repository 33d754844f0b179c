// SPDX-License-Identifier: Apache-2.0
// The gradient of CTC on the CPU, kBlock frames of a sequence at a time: see devices/ctc_grad.h.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/ctc_frames.h"
#include "nativeops/devices/cpu/fold.h"

namespace nativeops::tuned {

template <class T, class I>
class CtcGradient {
  using A = Accum<T>;
  static constexpr int64_t kBlock = ctc::kBlock;

 public:
  CtcGradient(Device& dev, const ctc::Problem<T, I>& problem, In<float, 3> log_sums,
              Out<T, 3> d_logits)
      : problem_(problem),
        log_sums_(log_sums),
        d_logits_(d_logits),
        classes_(dev, problem.logits),
        states_(dev, problem.targets.size(1), kBlock + 3, kBlock),
        stride_(round_up(problem.targets.size(1) + 1, kLanes)),
        labels_(dev.workspace<A>(kBlock * stride_)),
        occupied_(dev.workspace<A>(4 * (problem.targets.size(1) + 1 + kLanes))),
        of_class_(dev.workspace<A>(problem.classes())),
        row_(dev.workspace<T>(d_logits.stride(2) == 1 ? 0 : problem.classes())) {
    std::fill(of_class_.data(), of_class_.data() + problem.classes(), A(0));
  }

  // A block of a sequence; take(states, before, later) fetches the weights at both of its ends. In
  // `later` are those before the first frame of the block that was last done: those behind this
  // one, if it comes before that one.
  template <class Take>
  void begin(int64_t b, int64_t block, double score, A d_loss, Take take) {
    b_ = b, first_ = block * kBlock, d_loss_ = d_loss;
    const int64_t most = std::min(first_ + kBlock, d_logits_.size(0));
    const int64_t end = std::max(first_, std::min(most, problem_.frames(b)));
    const bool possible = score > lowest<double>();
    for (int64_t t = possible ? end : first_; t < most; ++t) {
      fill(t, b, t < end && score != score ? A(score) : A(0));
    }
    steps_ = possible ? end - first_ : 0;
    if (steps_ == 0) return;
    states_.begin(problem_, b);
    take(states_, states_.row(0), later(steps_));
    for (int64_t i = 0; i < steps_; ++i) gather(i);
  }

  // The blocks of some sequences side by side: see share_side_by_side.
  static void run(CtcGradient* blocks, int64_t count) {
    const auto each = [=](auto f) {
      for (int64_t k = 0; k < count; ++k) f(blocks[k]);
    };
    for (int64_t i = 0; i < kBlock; ++i) {
      each([=](CtcGradient& block) { block.forth(i); });
    }
    each([](CtcGradient& block) { block.turn(); });
    for (int64_t i = kBlock - 1; i >= 0; --i) {
      each([=](CtcGradient& block) { block.back(i); });
      each([=](CtcGradient& block) { block.collect(i); });
      each([=](CtcGradient& block) { block.write(i); });
    }
  }

 private:
  static constexpr int64_t kLanes = simd::kLanes<A>;

  // The weights behind i frames of the block, on the way back.
  CtcRow<A> later(int64_t i) const { return states_.row(kBlock + 1 + i % 2); }

  void forth(int64_t i) {
    if (i >= steps_) return;
    y_[i] = states_.frame(i, {blanks_[i], labels_.data() + i * stride_});
    states_.forth(states_.row(i), states_.row(i + 1), y_[i]);
  }
  void turn() {
    if (steps_ == 0) return;
    const int64_t i = steps_ - 1;
    all_ = total(states_.row(i + 1), later(i + 1), later(i), y_[i]);
  }
  void back(int64_t i) {
    if (i < steps_) step(states_.row(i + 1), later(i + 1), later(i), y_[i], all_);
  }
  void fill(int64_t t, int64_t b, A value) const {
    for (int64_t c = 0; c < problem_.classes(); ++c) d_logits_(t, b, c) = T(value);
  }

  // Long before they are read: what was stored one by one cannot be loaded at once as a vector.
  void gather(int64_t i) {
    const int64_t t = first_ + i;
    const ctc::Split<A> split(ctc::get(log_sums_, t, b_));
    const auto x = problem_.logits;
    A* to = labels_.data() + i * stride_;
    blanks_[i] = split.from(A(x(t, b_, problem_.blank)));
    for (int64_t k = 0; k < states_.n; ++k) {
      to[k] = split.from(A(x(t, b_, static_cast<int64_t>(problem_.targets(b_, k)))));
    }
    std::fill(to + states_.n, to + states_.width, lowest<A>());
  }

  // Σ_s alpha[s] · Σ beta[s'] over s' after s: the same in all frames, but for rounding.
  [[gnu::flatten]] Wide<A> total(CtcRow<A> alpha, CtcRow<A> from, CtcRow<A> to,
                                 CtcFrame<A> y) const {
    const int64_t width = states_.width;
    A *m = occupied_.data(), *e = m + 2 * width;
    states_.back(from, to, y, [=](int64_t i, Wide<A> after_blank, Wide<A> after_label) {
      m[i] = alpha.blank_m[i] * after_blank.m, e[i] = alpha.blank_e[i] + after_blank.e;
      m[width + i] = alpha.label_m[i] * after_label.m;
      e[width + i] = alpha.label_e[i] + after_label.e;
    });
    const A top = fold_row<A>(
        2 * width, lowest<A>(), [=](int64_t i) { return e[i]; },
        [](A a, A b) { return b > a ? b : a; });
    const A sum = fold_row<A>(
        2 * width, A(0), [=](int64_t i) { return m[i] * scale_of(e[i] - top); },
        [](A a, A b) { return a + b; });
    return {sum, top};
  }

  // The probability of being in each state after a frame, and the weights one frame earlier.
  void step(CtcRow<A> alpha, CtcRow<A> from, CtcRow<A> to, CtcFrame<A> y, Wide<A> all) const {
    A *blank = occupied_.data(), *label = blank + states_.width;
    const A factor = 1 / all.m;
    const A e = all.e;
    states_.back(from, to, y, [=](int64_t i, Wide<A> after_blank, Wide<A> after_label) {
      const Wide<A> a = alpha.blank(i), l = alpha.label(i);
      blank[i] = a.m * after_blank.m * factor * scale_of(a.e + after_blank.e - e);
      label[i] = l.m * after_label.m * factor * scale_of(l.e + after_label.e - e);
    });
  }

  // Σ of the occupied states with the same label
  void collect(int64_t i) {
    if (i >= steps_) return;
    const A *blank = occupied_.data(), *label = blank + states_.width;
    A* of_class = of_class_.data();
    of_class[problem_.blank] = fold_row<A>(
        states_.width, A(0), [=](int64_t k) { return blank[k]; }, [](A a, A b) { return a + b; });
    for (int64_t k = 0; k < states_.n; ++k) {
      of_class[static_cast<int64_t>(problem_.targets(b_, k))] += label[k];
    }
  }

  // d_logits[t,b,c] = d_loss · (softmax - that of the class)
  void write(int64_t i) {
    if (i >= steps_) return;
    const int64_t t = first_ + i;
    T* to = row_.data() == nullptr ? &d_logits_(t, b_, 0) : row_.data();
    problem_.normalized ? write<true>(t, b_, d_loss_, to) : write<false>(t, b_, d_loss_, to);
    if (row_.data() != nullptr) {
      for (int64_t c = 0; c < problem_.classes(); ++c) d_logits_(t, b_, c) = to[c];
    }
    A* of_class = of_class_.data();
    of_class[problem_.blank] = 0;
    for (int64_t k = 0; k < states_.n; ++k) {
      of_class[static_cast<int64_t>(problem_.targets(b_, k))] = 0;
    }
  }
  template <bool kNormalized>
  [[gnu::flatten]] void write(int64_t t, int64_t b, A d_loss, T* to) const {
    const ctc::Split<A> split(ctc::get(log_sums_, t, b));
    const T* x = classes_.at(t, b);
    const A* of_class = of_class_.data();
    const int64_t n = problem_.classes();
    NATIVEOPS_IVDEP
    for (int64_t c = 0; c < n; ++c) {
      const A softmax = kNormalized ? A(0) : simd::exp_negative(split.from(A(x[c])));
      to[c] = T(d_loss * (softmax - of_class[c]));
    }
  }

  const ctc::Problem<T, I>& problem_;
  In<float, 3> log_sums_;
  Out<T, 3> d_logits_;
  CtcClasses<T> classes_;
  CtcStates<A> states_;
  int64_t stride_;
  Workspace<A> labels_, occupied_, of_class_;
  Workspace<T> row_;

  int64_t b_ = 0, first_ = 0, steps_ = 0;
  A d_loss_ = 0, blanks_[kBlock];
  CtcFrame<A> y_[kBlock];
  Wide<A> all_;
};

}  // namespace nativeops::tuned
