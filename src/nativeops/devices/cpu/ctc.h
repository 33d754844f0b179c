// SPDX-License-Identifier: Apache-2.0
// The states of CTC on the CPU, side by side in vectors: see devices/ctc.h for what they are.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "nativeops/devices/cpu/pack.h"
#include "nativeops/devices/ctc.h"

namespace nativeops::tuned {

// The weights of all states at one time: blanks and labels apart, each with its m and its e. Behind
// the states there are zeros up to a whole vector and one more, and a vector of them before.
template <class A>
struct CtcRow {
  A *blank_m, *blank_e, *label_m, *label_e;

  Wide<A> blank(int64_t i) const { return {blank_m[i], blank_e[i]}; }
  Wide<A> label(int64_t i) const { return {label_m[i], label_e[i]}; }
  void set_blank(int64_t i, Wide<A> w) const { blank_m[i] = w.m, blank_e[i] = w.e; }
  void set_label(int64_t i, Wide<A> w) const { label_m[i] = w.m, label_e[i] = w.e; }
};

// The probabilities of a frame: of the blank, and of each label.
template <class A>
struct CtcFrame {
  A *m, *e;
  Wide<A> blank;
  Wide<A> label(int64_t i) const { return {m[i], e[i]}; }
};

// The logarithms that a frame's probabilities are made from: of the labels in whole vectors, with
// -infinity behind them.
template <class A>
struct CtcLogs {
  A blank;
  const A* labels;
};

// A sequence's states, and the memory to walk through them.
template <class A>
class CtcStates {
 public:
  static constexpr int64_t kLanes = simd::kLanes<A>;
  int64_t n = 0, width = 0;  // labels; blanks in whole vectors
  bool loop = true;

  // For targets of at most that many labels.
  CtcStates(Device& dev, int64_t labels, int64_t rows, int64_t frames)
      : stride_(round_up(labels + 1, kLanes) + 2 * kLanes),
        rows_(rows),
        frames_(frames),
        memory_(dev.workspace<A>((rows * 4 + frames * 2 + 1) * stride_)),
        kept_(dev.workspace<double>(2 * labels + 1 + 2 * kLanes)) {}

  template <class T, class I>
  void begin(const ctc::Problem<T, I>& problem, int64_t b) {
    const int64_t before = width;
    n = problem.labels(b);
    width = round_up(n + 1, kLanes);
    loop = problem.label_loop;
    std::fill(skips() - kLanes, skips() + width + kLanes, lowest<A>());
    for (int64_t i = 1; i < n; ++i) skips()[i] = problem.skips(b, i) ? A(0) : lowest<A>();
    // No step writes beside the states, and all of them are written before they are read.
    for (int64_t i = 0; i < rows_ && width != before; ++i) clear(row(i));
  }

  CtcRow<A> row(int64_t i) const {
    return {array(4 * i), array(4 * i + 1), array(4 * i + 2), array(4 * i + 3)};
  }

  [[gnu::flatten]] CtcFrame<A> frame(int64_t i, CtcLogs<A> logs) const {
    const CtcFrame<A> to{array(4 * rows_ + 2 * i), array(4 * rows_ + 2 * i + 1),
                         wide_exp(logs.blank)};
    const A* from = logs.labels;
    NATIVEOPS_IVDEP
    for (int64_t k = 0; k < width; ++k) {
      const Wide<A> y = wide_exp(from[k]);
      to.m[k] = y.m, to.e[k] = y.e;
    }
    return to;
  }

  void start(CtcRow<A> row, int64_t blank) const {
    clear(row);
    row.blank_e[blank] = 0;
  }

  // to = y · Σ from over the states before
  void forth(CtcRow<A> from, CtcRow<A> to, CtcFrame<A> y) const {
    loop ? forth<true>(from, to, y) : forth<false>(from, to, y);
  }

  // to = y · Σ from over the states after; each(i, sums) sees both sums before.
  template <class F>
  void back(CtcRow<A> from, CtcRow<A> to, CtcFrame<A> y, F each) const {
    loop ? back<true>(from, to, y, each) : back<false>(from, to, y, each);
  }

  // Makes a row relative to its largest weight; see ctc::Walk.
  double lower(CtcRow<A> row) const {
    A top = lowest<A>();
    for (int64_t i = 0; i < width; ++i) {
      top = max_or_nan(top, max_or_nan(row.blank_e[i], row.label_e[i]));
    }
    if (!is_finite(top)) return 0;
    for (int64_t i = 0; i < width; ++i) row.blank_e[i] -= top, row.label_e[i] -= top;
    return log_of(Wide<A>{A(1), top});
  }

  // Writes a row as logarithms relative to the largest, and zeros behind it.
  [[gnu::flatten]] void keep(CtcRow<A> row, View<float, 2> to) const {
    double *log = kept_.data(), top = lowest<double>();
    for (int64_t i = 0; i <= n; ++i) log[i] = log_of(row.blank(i));
    for (int64_t i = 0; i < n; ++i) log[n + 1 + i] = log_of(row.label(i));
    for (int64_t s = 0; s <= 2 * n; ++s) top = max_or_nan(top, log[s]);
    if (top == lowest<double>()) top = 0;
    for (int64_t s = 0; s <= 2 * n; ++s) ctc::set(to, log[s] - top, s);
    for (int64_t s = 2 * n + 1; s < to.size(0); ++s) ctc::set(to, 0.0, s);
  }

  // Such a row again.
  [[gnu::flatten]] void take(View<const float, 2> from, CtcRow<A> row) const {
    double* log = kept_.data();
    clear(row);
    for (int64_t s = 0; s <= 2 * n; ++s) log[s] = ctc::get(from, s);
    for (int64_t i = 0; i <= n; ++i) row.set_blank(i, wide_of_log<A>(log[i]));
    for (int64_t i = 0; i < n; ++i) row.set_label(i, wide_of_log<A>(log[n + 1 + i]));
  }

 private:
  A* array(int64_t i) const { return memory_.data() + i * stride_ + kLanes; }
  A* skips() const { return array(4 * rows_ + 2 * frames_); }

  void clear(CtcRow<A> row) const {
    for (A* m : {row.blank_m, row.label_m}) std::fill(m - kLanes, m + width + kLanes, A(1));
    for (A* e : {row.blank_e, row.label_e}) {
      std::fill(e - kLanes, e + width + kLanes, lowest<A>());
    }
  }

  template <bool kLoop>
  [[gnu::flatten]] void forth(CtcRow<A> from, CtcRow<A> to, CtcFrame<A> y) const {
    const A* skip = skips();
    NATIVEOPS_IVDEP
    for (int64_t i = 0; i < width; ++i) {
      const Wide<A> blank = from.blank(i), before = from.label(i - 1);
      const Wide<A> jump{before.m, before.e + skip[i]};
      to.set_blank(i, (blank + before) * y.blank);
      to.set_label(i, (kLoop ? sum(from.label(i), blank, jump) : blank + jump) * y.label(i));
    }
  }

  template <bool kLoop, class F>
  [[gnu::flatten]] void back(CtcRow<A> from, CtcRow<A> to, CtcFrame<A> y, F each) const {
    const A* skip = skips();
    NATIVEOPS_IVDEP
    for (int64_t i = 0; i < width; ++i) {
      const Wide<A> label = from.label(i), blank = from.blank(i + 1), after = from.label(i + 1);
      const Wide<A> jump{after.m, after.e + skip[i + 1]};
      const Wide<A> of_blank = from.blank(i) + label;
      const Wide<A> of_label = kLoop ? sum(label, blank, jump) : blank + jump;
      each(i, of_blank, of_label);
      to.set_blank(i, of_blank * y.blank);
      to.set_label(i, of_label * y.label(i));
    }
  }

  int64_t stride_, rows_, frames_;
  Workspace<A> memory_;
  Workspace<double> kept_;
};

}  // namespace nativeops::tuned
