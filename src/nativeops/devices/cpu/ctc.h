// SPDX-License-Identifier: Apache-2.0
// The states of CTC on the CPU, side by side in vectors: see devices/ctc.h for what they are.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "nativeops/devices/cpu/ctc_weights.h"
#include "nativeops/devices/cpu/pack.h"

namespace nativeops::tuned {

// The weights of all states at one time: blanks and labels apart. Behind the states there are zeros
// up to a whole vector and one more, and a vector of them before.
template <class W>
struct CtcRow {
  Weights<W> blank, label;
};

// The probabilities of a frame: of the blank, and of each label.
template <class W>
struct CtcFrame {
  W blank;
  Weights<W> label;
};

// The logarithms that a frame's probabilities are made from: of the labels in whole vectors, with
// -infinity behind them. All are too large by `rest`, which ratios of ways do not tell.
template <class A>
struct CtcLogs {
  A blank;
  const A* labels;
  A rest;
};

// Rows of a sequence's states whose weights are of the form W, and of its frames' probabilities.
template <class W, class A>
class CtcStates {
 public:
  static constexpr bool kPlain = std::is_same_v<W, double>;
  static constexpr int64_t kLanes = simd::kLanes<double>, kArrays = Weights<W>::kArrays;
  int64_t n = 0, width = 0;  // labels; blanks in whole vectors

  // For targets of at most that many labels.
  CtcStates(Device& dev, int64_t labels, int64_t rows, int64_t frames)
      : stride_(round_up(labels + 1, kLanes) + 2 * kLanes),
        rows_(rows),
        frames_(frames),
        memory_(dev.workspace<double>((kArrays * (2 * rows + frames) + 1) * stride_)) {}

  template <class T, class I>
  void begin(const ctc::Problem<T, I>& problem, int64_t b) {
    if (b == sequence_) return;
    const int64_t before = width;
    sequence_ = b;
    n = problem.labels(b);
    width = round_up(n + 1, kLanes);
    loop_ = problem.label_loop;
    std::fill(skips() - kLanes, skips() + width + kLanes, Form<W>::kShut);
    for (int64_t i = 1; i < n; ++i) {
      if (problem.skips(b, i)) skips()[i] = Form<W>::kOpen;
    }
    // No step writes beside the states, and all of them are written before they are read.
    for (int64_t i = 0; i < rows_ && width != before; ++i) clear(row(i));
  }

  static Wide to_wide(W w) { return Form<W>::to_wide(w); }
  CtcRow<W> row(int64_t i) const { return {weights(2 * i), weights(2 * i + 1)}; }

  [[gnu::flatten]] CtcFrame<W> frame(int64_t i, CtcLogs<A> logs) const {
    const CtcFrame<W> to{Form<W>::from_log(logs.blank), weights(2 * rows_ + i)};
    const A* from = logs.labels;
    NATIVEOPS_IVDEP
    for (int64_t k = 0; k < width; ++k) to.label.set(k, Form<W>::from_log(from[k]));
    return to;
  }

  void start(CtcRow<W> row, int64_t blank) const {
    clear(row);
    row.blank.set(blank, Form<W>::from_log(A(0)));
  }

  // to = y · Σ from over the states before
  void forth(CtcRow<W> from, CtcRow<W> to, CtcFrame<W> y) const {
    loop_ ? forth<true>(from, to, y) : forth<false>(from, to, y);
  }

  // to = y · Σ from over the states after; each(i, sums) sees both sums before.
  template <class F>
  void back(CtcRow<W> from, CtcRow<W> to, CtcFrame<W> y, F each) const {
    loop_ ? back<true>(from, to, y, each) : back<false>(from, to, y, each);
  }

  // Brings a row's largest weight to 2^0, or a plain one to Plain::kTop, and returns the exponent
  // that is gone.
  [[gnu::flatten]] double lower(CtcRow<W> row) const {
    const double most = fold_row<double>(
        width, lowest<double>(),
        [=](int64_t i) {
          return max2(Form<W>::exponent(row.blank[i]), Form<W>::exponent(row.label[i]));
        },
        [](auto a, auto b) { return a > b ? a : b; });
    if (!is_finite(most)) return 0;
    const double by = (kPlain ? Plain::kTop : 0) - most;
    NATIVEOPS_IVDEP
    for (int64_t i = 0; i < width; ++i) {
      row.blank.set(i, Form<W>::scaled(row.blank[i], by));
      row.label.set(i, Form<W>::scaled(row.label[i], by));
    }
    return -by;
  }

  // Whether plain doubles can hold a lowered row; they do not hold NaN.
  [[gnu::flatten]] bool fits(CtcRow<W> row) const {
    const double least = fold_row<double>(
        width, 0.0,
        [=](int64_t i) {
          const double a = Form<W>::exponent(row.blank[i]), b = Form<W>::exponent(row.label[i]);
          return min_or_nan(a == lowest<double>() ? 0 : a, b == lowest<double>() ? 0 : b);
        },
        [](auto a, auto b) { return min_or_nan(a, b); });
    return least >= Plain::kLeast - (kPlain ? 0 : Plain::kTop);
  }

  // A lowered row of the other form, lowered; returns the exponent that is gone.
  template <class Other>
  [[gnu::flatten]] double convert(CtcRow<Other> from, CtcRow<W> to) const {
    clear(to);
    for (int64_t i = 0; i <= n; ++i) {
      to.blank.set(i, Form<W>::from_wide(Form<Other>::to_wide(from.blank[i])));
      to.label.set(i, Form<W>::from_wide(Form<Other>::to_wide(from.label[i])));
    }
    return lower(to);
  }

  [[gnu::flatten]] void copy(CtcRow<W> from, CtcRow<W> to) const {
    for (int64_t i = 0; i < width; ++i) to.blank.set(i, from.blank[i]);
    for (int64_t i = 0; i < width; ++i) to.label.set(i, from.label[i]);
  }

 private:
  double* array(int64_t i) const { return memory_.data() + i * stride_ + kLanes; }
  Weights<W> weights(int64_t i) const { return Weights<W>::in(array(kArrays * i), stride_); }
  double* skips() const { return array(kArrays * (2 * rows_ + frames_)); }

  void clear(CtcRow<W> row) const {
    for (int64_t i = -kLanes; i < width + kLanes; ++i) {
      row.blank.set(i, Form<W>::zero());
      row.label.set(i, Form<W>::zero());
    }
  }

  template <bool kLoop>
  [[gnu::flatten]] void forth(CtcRow<W> from, CtcRow<W> to, CtcFrame<W> y) const {
    const double* skip = skips();
    NATIVEOPS_IVDEP
    for (int64_t i = 0; i < width; ++i) {
      const W blank = from.blank[i], before = from.label[i - 1];
      const W jump = Form<W>::through(before, skip[i]);
      to.blank.set(i, (blank + before) * y.blank);
      to.label.set(i, (kLoop ? sum(from.label[i], blank, jump) : blank + jump) * y.label[i]);
    }
  }

  template <bool kLoop, class F>
  [[gnu::flatten]] void back(CtcRow<W> from, CtcRow<W> to, CtcFrame<W> y, F each) const {
    const double* skip = skips();
    NATIVEOPS_IVDEP
    for (int64_t i = 0; i < width; ++i) {
      const W label = from.label[i], blank = from.blank[i + 1], after = from.label[i + 1];
      const W jump = Form<W>::through(after, skip[i + 1]);
      const W of_blank = from.blank[i] + label;
      const W of_label = kLoop ? sum(label, blank, jump) : blank + jump;
      each(i, of_blank, of_label);
      to.blank.set(i, of_blank * y.blank);
      to.label.set(i, of_label * y.label[i]);
    }
  }

  int64_t sequence_ = -1, stride_, rows_, frames_;
  bool loop_ = true;
  Workspace<double> memory_;
};

// Rows that are kept, each in the form that it has.
class CtcKept {
 public:
  CtcKept(Device& dev, int64_t labels, int64_t count)
      : stride_(round_up(labels + 1, simd::kLanes<double>)),
        memory_(dev.workspace<double>(count * 4 * stride_)),
        is_plain_(dev.workspace<int8_t>(count)) {}

  bool is_plain(int64_t i) const { return is_plain_[i] != 0; }
  template <class W, class A>
  void keep(int64_t i, const CtcStates<W, A>& states, CtcRow<W> row) {
    is_plain_[i] = states.kPlain;
    states.copy(row, at<W>(i));
  }
  template <class W, class A>
  void take(int64_t i, const CtcStates<W, A>& states, CtcRow<W> row) const {
    if (is_plain(i) == states.kPlain) {
      states.copy(at<W>(i), row);
    } else if (is_plain(i)) {
      states.convert(at<double>(i), row);
    } else {
      states.convert(at<Wide>(i), row);
    }
  }

 private:
  template <class W>
  CtcRow<W> at(int64_t i) const {
    using Many = Weights<W>;
    double* memory = memory_.data() + i * 4 * stride_;
    return {Many::in(memory, stride_), Many::in(memory + Many::kArrays * stride_, stride_)};
  }

  int64_t stride_;
  Workspace<double> memory_;
  Workspace<int8_t> is_plain_;
};

}  // namespace nativeops::tuned
