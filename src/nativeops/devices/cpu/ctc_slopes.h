// SPDX-License-Identifier: Apache-2.0
// The slopes of CTC on the CPU, kBlock frames of a sequence at a time: see devices/ctc_slopes.h.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/ctc_frames.h"

namespace nativeops::tuned {

// A block's rows in one of the forms of weights: forth through all of its frames, and back.
template <class W, class A>
class CtcBlock : public CtcStates<W, A> {
  using States = CtcStates<W, A>;

 public:
  CtcBlock(Device& dev, int64_t labels)
      : States(dev, labels, ctc::kBlock + 3, ctc::kBlock),
        products_(
            dev.workspace<double>(States::kArrays * 2 * round_up(labels + 1, States::kLanes))) {}

  // The weights behind i frames of the block, on the way back.
  CtcRow<W> later(int64_t i) const { return this->row(ctc::kBlock + 1 + i % 2); }

  void forth(int64_t i, CtcLogs<A> logs) {
    y_[i] = this->frame(i, logs);
    States::forth(this->row(i), this->row(i + 1), y_[i]);
  }

  // Σ_s alpha[s] · Σ beta[s'] over s' after s: the same in all frames, but for rounding. False if
  // this form cannot hold it.
  [[gnu::flatten]] bool turn(int64_t steps) {
    const int64_t width = this->width;
    const auto alpha = this->row(steps);
    const auto products = Weights<W>::in(products_.data(), 2 * width);
    States::back(later(steps), later(steps - 1), y_[steps - 1],
                 [=](int64_t i, W after_blank, W after_label) {
                   products.set(i, Form<W>::product(alpha.blank[i], after_blank));
                   products.set(width + i, Form<W>::product(alpha.label[i], after_label));
                 });
    all_ = Whole<W>(products, 2 * width);
    return all_.holds();
  }

  // The weights behind i frames, lowered; whether plain ones can hold them.
  bool lower_later(int64_t i) const {
    this->lower(later(i));
    return this->fits(later(i));
  }

  // The probability of being in each state after frame i, and the weights one frame earlier.
  [[gnu::flatten]] void back(int64_t i, A* blank, A* label) const {
    const auto alpha = this->row(i + 1);
    const Whole<W> all = all_;
    States::back(later(i + 1), later(i), y_[i], [=](int64_t k, W after_blank, W after_label) {
      blank[k] = A(all.part(alpha.blank[k], after_blank));
      label[k] = A(all.part(alpha.label[k], after_label));
    });
  }

 private:
  Workspace<double> products_;
  CtcFrame<W> y_[ctc::kBlock];
  Whole<W> all_;
};

template <class T, class I>
class CtcSlopes {
  using A = Accum<T>;
  static constexpr int64_t kBlock = ctc::kBlock;
  static constexpr int64_t kWhole = simd::kLanes<A>;  // the fewest numbers that blanks come in

 public:
  CtcSlopes(Device& dev, const CtcFrames<T, I>& frames, Out<T, 3> slopes)
      : frames_(&frames),
        slopes_(slopes),
        wide_(dev, frames.problem.targets.size(1)),
        plain_(dev, frames.problem.targets.size(1)),
        occupied_(dev.workspace<A>(2 * frames.width())),
        softmaxes_(dev.workspace<A>(frames.width())),
        row_(dev.workspace<A>(frames.width())),
        first_label_(dev.workspace<int64_t>(slopes.size(2))),
        again_(dev.workspace<int64_t>(slopes.size(2))),
        label_of_(dev.workspace<int64_t>(frames.problem.classes())) {
    std::fill(label_of_.data(), label_of_.data() + frames.problem.classes(), -1);
    std::fill(softmaxes_.data(), softmaxes_.data() + frames.width(), A(0));
  }

  // A block of a sequence, with the weights that are kept before and behind it. Where none are kept
  // behind it, it is the sequence's last, or the one before the block that was last done.
  void begin(int64_t b, int64_t block, const CtcKept& kept, int64_t before, int64_t behind) {
    const auto& problem = frames_->problem;
    const int64_t end = problem.frames(b);
    b_ = b, first_ = block * kBlock, kept_ = &kept, before_ = before, behind_ = behind;
    steps_ = std::clamp<int64_t>(end - first_, 0, kBlock);
    if (steps_ == 0) return;
    link();
    plain_.begin(problem, b);
    bool fits = kept.is_plain(before);
    if (behind >= 0) {
      fits &= kept.is_plain(behind);
    } else if (first_ + steps_ == end) {
      is_plain_ = true;
      plain_.start(plain_.later(steps_), plain_.n);
    } else {
      fits &= is_plain_ ? plain_.lower_later(steps_) : wide_.lower_later(steps_);
    }
    if (!fits) return widen();
    kept.take(before, plain_, plain_.row(0));
    if (behind >= 0) {
      kept.take(behind, plain_, plain_.later(steps_));
    } else if (!is_plain_) {
      plain_.convert(wide_.later(steps_), plain_.later(steps_));
    }
    is_plain_ = true;
  }

  void rest() { steps_ = 0; }  // nothing to do

  // Blocks of some sequences side by side, as in share_side_by_side; each(f) does f of every one.
  template <class Each>
  static void run(Each each) {
    for (int64_t i = 0; i < kBlock; ++i) {
      each([=](CtcSlopes& block) { block.forth(i); });
    }
    each([](CtcSlopes& block) { block.turn(); });
    for (int64_t i = kBlock - 1; i >= 0; --i) {
      each([=](CtcSlopes& block) { block.back(i); });
      each([=](CtcSlopes& block) { block.write(i); });
    }
  }

 private:
  CtcLogs<A> logs(int64_t i) const { return frames_->at(first_ + i, b_); }

  // The first label of the target with the same class as each.
  void link() {
    if (b_ == linked_) return;
    linked_ = b_, n_again_ = 0;
    std::fill(occupied_.data(), occupied_.data() + frames_->width(), A(0));
    const auto& targets = frames_->problem.targets;
    const int64_t n = frames_->problem.labels(b_);
    for (int64_t i = 0; i < n; ++i) {
      int64_t& label = label_of_[static_cast<int64_t>(targets(b_, i))];
      if (label >= 0) again_[n_again_++] = i;
      first_label_[i] = label = label < 0 ? i : label;
    }
    for (int64_t i = 0; i < n; ++i) label_of_[static_cast<int64_t>(targets(b_, i))] = -1;
  }

  // Makes the weights at both ends of the block wide ones.
  void widen() {
    wide_.begin(frames_->problem, b_);
    kept_->take(before_, wide_, wide_.row(0));
    if (behind_ >= 0) {
      kept_->take(behind_, wide_, wide_.later(steps_));
    } else if (is_plain_) {
      wide_.convert(plain_.later(steps_), wide_.later(steps_));
    }
    is_plain_ = false;
  }

  void forth(int64_t i) {
    if (i < steps_) is_plain_ ? plain_.forth(i, logs(i)) : wide_.forth(i, logs(i));
  }
  void turn() {
    if (steps_ == 0 || (is_plain_ && plain_.turn(steps_))) return;
    if (is_plain_) {
      widen();
      for (int64_t i = 0; i < steps_; ++i) forth(i);
    }
    wide_.turn(steps_);
  }
  void back(int64_t i) {
    if (i >= steps_) return;
    A *blank = occupied_.data(), *label = blank + frames_->width();
    is_plain_ ? plain_.back(i, blank, label) : wide_.back(i, blank, label);
  }

  // Softmax less the occupied states with the same class. The first label with a class collects for
  // all of them.
  [[gnu::flatten]] void write(int64_t i) {
    if (i >= steps_) return;
    const A *blank = occupied_.data(), *label = blank + frames_->width();
    const auto to = at(at(slopes_, first_ + i), b_);
    const int64_t n = frames_->problem.labels(b_);
    const CtcLogs<A> y = logs(i);
    A *softmaxes = softmaxes_.data(), *slopes = row_.data();
    if constexpr (std::is_same_v<T, A>) slopes = to.stride(0) == 1 ? to.data : slopes;
    const A blanks = fold_row<A>(
        round_up(n + 1, kWhole), A(0), [=](int64_t k) { return blank[k]; },
        [](auto a, auto b) { return a + b; });
    slopes[0] =
        (frames_->problem.normalized ? A(0) : simd::exp_negative(y.blank - y.rest)) - blanks;
    for (int64_t k = 0; k < frames_->width() && !frames_->problem.normalized; ++k) {
      softmaxes[k] = simd::exp_negative(y.labels[k] - y.rest);
    }
    for (int64_t k = 0; k < n; ++k) slopes[k + 1] = softmaxes[k] - label[k];
    for (int64_t k = 0; k < n_again_; ++k) {
      slopes[first_label_[again_[k]] + 1] -= label[again_[k]];
      slopes[again_[k] + 1] = A(ctc::kAgain);
    }
    for (int64_t k = 0; k <= n && slopes == row_.data(); ++k) to(k) = T(slopes[k]);
    for (int64_t k = n + 1; k < to.size(0); ++k) to(k) = T(A(0));
  }

  const CtcFrames<T, I>* frames_;
  Out<T, 3> slopes_;
  CtcBlock<Wide, A> wide_;
  CtcBlock<double, A> plain_;
  Workspace<A> occupied_, softmaxes_, row_;
  Workspace<int64_t> first_label_, again_, label_of_;

  const CtcKept* kept_ = nullptr;
  int64_t b_ = 0, linked_ = -1, n_again_ = 0, first_ = 0, steps_ = 0, before_ = 0, behind_ = 0;
  bool is_plain_ = true;
};

}  // namespace nativeops::tuned
