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
        log_probs_(dev.workspace<A>(problem.targets.size(1) + 1)),
        occupied_(dev.workspace<A>(4 * (problem.targets.size(1) + 1 + kLanes))),
        of_class_(dev.workspace<A>(problem.classes())),
        row_(dev.workspace<T>(d_logits.stride(2) == 1 ? 0 : problem.classes())) {
    std::fill(of_class_.data(), of_class_.data() + problem.classes(), A(0));
  }

  // The block of a sequence; take(states, first, last) fetches the weights at both of its ends.
  template <class Take>
  void run(int64_t b, int64_t block, double score, A d_loss, Take take) {
    const int64_t first = block * kBlock, most = std::min(first + kBlock, d_logits_.size(0));
    const int64_t end = std::max(first, std::min(most, problem_.frames(b)));
    const bool possible = score > lowest<double>();
    for (int64_t t = possible ? end : first; t < most; ++t) {
      fill(t, b, t < end && score != score ? A(score) : A(0));
    }
    if (!possible || end == first) return;
    states_.begin(problem_, b);
    take(states_, states_.row(0), states_.row(kBlock + 1 + end % 2));
    CtcFrame<A> y[kBlock];
    for (int64_t t = first; t < end; ++t) {
      y[t - first] = states_.frame(t - first, gather(t, b));
      states_.forth(states_.row(t - first), states_.row(t - first + 1), y[t - first]);
    }
    Wide<A> all;
    for (int64_t t = end - 1; t >= first; --t) {
      const auto alpha = states_.row(t - first + 1), from = states_.row(kBlock + 1 + (t + 1) % 2),
                 to = states_.row(kBlock + 1 + t % 2);
      if (t == end - 1) all = total(alpha, from, to, y[t - first]);
      step(alpha, from, to, y[t - first], all);
      write(t, b, d_loss);
    }
  }

 private:
  static constexpr int64_t kLanes = simd::kLanes<A>;

  void fill(int64_t t, int64_t b, A value) const {
    for (int64_t c = 0; c < problem_.classes(); ++c) d_logits_(t, b, c) = T(value);
  }

  const A* gather(int64_t t, int64_t b) const {
    const ctc::Split<A> split(ctc::get(log_sums_, t, b));
    const auto x = problem_.logits;
    log_probs_[0] = split.from(A(x(t, b, problem_.blank)));
    for (int64_t i = 0; i < states_.n; ++i) {
      log_probs_[1 + i] = split.from(A(x(t, b, static_cast<int64_t>(problem_.targets(b, i)))));
    }
    return log_probs_.data();
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

  // d_logits[t,b,c] = d_loss · (softmax - Σ of the occupied states with that label)
  void write(int64_t t, int64_t b, A d_loss) {
    const A *blank = occupied_.data(), *label = blank + states_.width;
    A* of_class = of_class_.data();
    A blanks = 0;
    for (int64_t i = 0; i <= states_.n; ++i) blanks += blank[i];
    of_class[problem_.blank] = blanks;
    for (int64_t i = 0; i < states_.n; ++i) {
      of_class[static_cast<int64_t>(problem_.targets(b, i))] += label[i];
    }
    T* to = row_.data() == nullptr ? &d_logits_(t, b, 0) : row_.data();
    problem_.normalized ? write<true>(t, b, d_loss, to) : write<false>(t, b, d_loss, to);
    if (row_.data() != nullptr) {
      for (int64_t c = 0; c < problem_.classes(); ++c) d_logits_(t, b, c) = to[c];
    }
    of_class[problem_.blank] = 0;
    for (int64_t i = 0; i < states_.n; ++i) {
      of_class[static_cast<int64_t>(problem_.targets(b, i))] = 0;
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
  Workspace<A> log_probs_, occupied_, of_class_;
  Workspace<T> row_;
};

}  // namespace nativeops::tuned
