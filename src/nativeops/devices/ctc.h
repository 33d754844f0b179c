// SPDX-License-Identifier: Apache-2.0
// The states of CTC and the ways through them, as ops/ctc_loss.h walks them on every device.
//
// A target of n labels has 2n + 1 states: state i <= n is the blank before label i, state n + 1 + i
// is label i. A way begins in blank 0 or label 0, goes on as `before` says, and ends in blank n or
// label n - 1. So that neither end is special, it comes from blank 0 before the first frame, and
// goes to blank n after the last.
#pragma once
#include <cstdint>

#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/logarithm.h"
#include "nativeops/devices/softmax.h"
#include "nativeops/devices/wide.h"

namespace nativeops::ctc {

constexpr int kAgain = 2;       // among slopes, which are differences of probabilities
constexpr int64_t kBlock = 16;  // frames from one row of weights that is kept to the next

// log Σ_c e^x of each frame is kept as three floats, since not every framework has arrays of
// doubles, and half precision would not do: the largest x as a float, and as two what is left.
template <class A>
HOST_DEVICE LogSum<A> get(const In<float, 3>& parts, int64_t t, int64_t b) {
  const double left = static_cast<double>(parts(t, b, 1)) + static_cast<double>(parts(t, b, 2));
  return {static_cast<A>(parts(t, b, 0)), static_cast<A>(left)};
}
HOST_DEVICE inline void set(const Out<float, 3>& parts, double largest, double rest, int64_t t,
                            int64_t b) {
  const float high = static_cast<float>(largest);
  const double left = is_finite(high) ? (largest - static_cast<double>(high)) + rest : 0;
  const float middle = static_cast<float>(left);
  parts(t, b, 0) = high;
  parts(t, b, 1) = middle;
  parts(t, b, 2) = is_finite(middle) ? static_cast<float>(left - static_cast<double>(middle)) : 0;
}
// A logit as those floats can be compared with it: a large double counts as the nearest float,
// since what that lacks would leave no digits for the sum.
template <class A>
HOST_DEVICE A logit(A x) {
  if constexpr (sizeof(A) > sizeof(float)) {
    constexpr A most = static_cast<A>(Extreme<float>::most);
    const A near = static_cast<A>(static_cast<float>(max2(-most, min2(x, most))));
    return is_finite(x) && (x > A(0x1p53) || x < A(-0x1p53)) ? near : x;
  } else {
    return x;
  }
}

// What the op gets.
template <class T, class I>
struct Problem {
  In<T, 3> logits;   // t b c
  In<I, 2> targets;  // b s
  In<int32_t, 1> input_lengths, target_lengths;
  int64_t blank;
  bool normalized, label_loop;

  HOST_DEVICE int64_t classes() const { return logits.size(2); }
  HOST_DEVICE int64_t most_states() const { return 2 * targets.size(1) + 1; }
  HOST_DEVICE int64_t frames(int64_t b) const {
    return length_of(input_lengths, b, logits.size(0));
  }
  HOST_DEVICE int64_t labels(int64_t b) const {
    return length_of(target_lengths, b, targets.size(1));
  }
  HOST_DEVICE int64_t label(int64_t b, int64_t i) const {
    return within(static_cast<int64_t>(targets(b, i)), classes() - 1);
  }
  // Whether label i may follow label i - 1 without a blank between them.
  HOST_DEVICE bool skips(int64_t b, int64_t i) const {
    return i > 0 && (!label_loop || targets(b, i) != targets(b, i - 1));
  }

  // The probability of a class that the gradient of the softmax adds: none where the logits are
  // logarithms of probabilities.
  HOST_DEVICE Accum<T> softmax(int64_t t, int64_t b, int64_t c, LogSum<Accum<T>> log_sum) const {
    return normalized ? Accum<T>(0) : exp(log_sum.from(logit(Accum<T>(logits(t, b, c)))));
  }

  // Values are refused here where memory can be read, and kept within bounds elsewhere. A gradient
  // takes the blank as a label: JAX gives it zeros for a branch that some items have not taken.
  void check(bool of_gradient = false) const;
};

template <class T, class I>
void Problem<T, I>::check(bool of_gradient) const {
  const char* const bound = "the classes of `logits`";
  const int64_t last = classes() - 1;
  if (last >= 0 && (blank < 0 || blank > last)) refuse("blank", blank, 0, last, bound);
  check_range("input_lengths", input_lengths, 0, logits.size(0), "the frames of `logits`");
  check_range("target_lengths", target_lengths, 0, targets.size(1), "the labels of `targets`");
  check_labels("targets", targets, target_lengths, of_gradient ? kNoBlank : blank, last, bound);
}

// log_sums[t,b] = log Σ_c exp(logits[t,b,c]); 0 of a frame without any probability, beyond a
// length, and where the logits are logarithms of probabilities already, but NaN where one is that
// the target may need.
template <class T, class I>
void sum_frames(Device& dev, const Problem<T, I>& problem, Out<float, 3> log_sums) {
  using A = Accum<T>;
  const auto x = problem.logits;
  const int64_t batch = x.size(1), n = x.size(2);
  for_each_item(
      dev, x.size(0) * batch,
      [=] KERNEL(Team team, int64_t item) {
        const int64_t t = item / batch, b = item % batch;
        SoftmaxSums<A> of{0, 1};
        if (!problem.normalized && t < problem.frames(b)) {
          of = softmax_sums(team, at(at(x, t), b));
          const A most = logit(of.largest);
          if (most < of.largest || most > of.largest) {
            of = {most,
                  A(team.sum(0, n, [=](int64_t i) { return exp(logit(A(x(t, b, i))) - most); }))};
          }
          if (of.largest == lowest<A>()) of = {0, 1};
        } else if (n > 0 && t < problem.frames(b)) {
          const A blank = A(x(t, b, problem.blank));
          const auto label = [=](int64_t i) { return A(x(t, b, problem.label(b, i))); };
          const A most = max_or_nan(blank, team.max(0, problem.labels(b), label));
          if (most != most) of.largest = most;
        }
        if (team.rank() > 0) return;
        set(log_sums, static_cast<double>(of.largest), log(static_cast<double>(of.sum)), t, b);
      },
      n);
}

// One sequence, walked by a team. A row of weights, one for each state, is a view [2, states] of
// their parts m and e.
template <class T, class I>
struct Walk {
  using A = Accum<T>;
  using Row = View<double, 2>;

  Problem<T, I> problem;
  int64_t b;
  In<float, 3> log_sums;

  KERNEL int64_t n() const { return problem.labels(b); }
  KERNEL int64_t states() const { return 2 * n() + 1; }
  KERNEL static Wide weight(Row row, int64_t s) { return {row(0, s), row(1, s)}; }
  KERNEL static void set_weight(Row row, int64_t s, Wide weight) {
    row(0, s) = weight.m;
    row(1, s) = weight.e;
  }
  KERNEL int64_t label_of(int64_t s) const {
    return s <= n() ? problem.blank : problem.label(b, s - n() - 1);
  }

  // y[t,s]: the probability of the state's label. Its logarithm is a double: beside a class that
  // was masked with -1e9 a float has no digits left for the sum.
  KERNEL Wide emission(int64_t t, int64_t s) const {
    if (problem.classes() == 0) return wide_zero();
    const A x = logit(A(problem.logits(t, b, label_of(s))));
    return wide_exp(get<double>(log_sums, t, b).from(static_cast<double>(x)));
  }

  // Σ row[s'] over all states s' from which a way goes on to s.
  KERNEL Wide before(Row row, int64_t s) const {
    const int64_t i = s <= n() ? s : s - n() - 1;
    const auto none = wide_zero();
    const auto label_before = i > 0 ? weight(row, n() + i) : none;
    if (s <= n()) return weight(row, s) + label_before;
    return sum(problem.label_loop ? weight(row, s) : none, weight(row, i),
               problem.skips(b, i) ? label_before : none);
  }

  // Σ row[s'] over all states s' to which a way goes on from s.
  KERNEL Wide after(Row row, int64_t s) const {
    const int64_t i = s <= n() ? s : s - n() - 1;
    const auto none = wide_zero();
    if (s <= n()) return weight(row, s) + (i < n() ? weight(row, n() + 1 + i) : none);
    const bool skips = i + 1 < n() && problem.skips(b, i + 1);
    return sum(problem.label_loop ? weight(row, s) : none, weight(row, i + 1),
               skips ? weight(row, s + 1) : none);
  }

  KERNEL void start(Team team, Row row, int64_t at) const {
    team.each(0, states(),
              [=](int64_t s) { set_weight(row, s, s == at ? wide_one() : wide_zero()); });
    team.sync();
  }

  KERNEL void keep(Team team, Row row, Row to) const {
    team.each(0, states(), [=](int64_t s) { set_weight(to, s, weight(row, s)); });
  }

  // Makes a row relative to its largest weight, so that exponents are exact in any number of
  // frames, and returns the logarithm of that.
  KERNEL double lower(Team team, Row row) const {
    const double top = team.max(0, states(), [=](int64_t s) { return row(1, s); });
    if (!is_finite(top)) return 0;
    team.each(0, states(), [=](int64_t s) { row(1, s) -= top; });
    team.sync();
    return log_of(Wide{1, top});
  }

  // alpha[t,s] = y[t,s] · Σ alpha[t-1,s'] over s' before s; returns log p of the whole. `kept` gets
  // the row before each block of frames, if anybody asks for it.
  KERNEL double forth(Team team, View<double, 3> rows, View<double, 4> kept) const {
    const int64_t last = problem.frames(b);
    const Walk walk = *this;
    double base = 0;
    start(team, at(rows, 0), 0);
    for (int64_t t = 0; t < last; ++t) {
      const Row from = at(rows, t % 2), to = at(rows, 1 - t % 2);
      if (t % kBlock == 0) base += lower(team, from);
      if (kept && t % kBlock == 0) keep(team, from, at(at(kept, t / kBlock), b));
      team.each(0, states(),
                [=](int64_t s) { set_weight(to, s, walk.before(from, s) * walk.emission(t, s)); });
      team.sync();
    }
    const Row end = at(rows, last % 2);
    const auto blank = weight(end, n()), label = n() > 0 ? weight(end, 2 * n()) : wide_zero();
    return base + log_of(blank + label);
  }

  // beta[t,s] = y[t,s] · Σ beta[t+1,s'] over s' after s; `kept` gets the row behind each block.
  KERNEL void back(Team team, View<double, 3> rows, View<double, 4> kept) const {
    const int64_t last = problem.frames(b);
    const Walk walk = *this;
    start(team, at(rows, last % 2), n());
    for (int64_t t = last - 1; t >= 0; --t) {
      const Row from = at(rows, 1 - t % 2), to = at(rows, t % 2);
      if (t == last - 1 || (t + 1) % kBlock == 0) {
        lower(team, from);
        keep(team, from, at(at(kept, t / kBlock), b));
      }
      team.each(0, states(),
                [=](int64_t s) { set_weight(to, s, walk.after(from, s) * walk.emission(t, s)); });
      team.sync();
    }
  }
};

}  // namespace nativeops::ctc
