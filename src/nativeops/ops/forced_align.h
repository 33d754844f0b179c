// SPDX-License-Identifier: Apache-2.0
// The best path of a CTC lattice. Declared in forced_align.py.
#pragma once
#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/logarithm.h"

namespace nativeops {

// What an op gets and makes.
template <class T, class I>
struct Alignment {
  In<T, 3> log_probs;  // t b c
  In<I, 2> targets;    // b s
  In<int32_t, 1> input_lengths, target_lengths;
  Out<I, 2> labels;        // t b
  Out<T, 2> scores;        // t b
  Out<I, 2> starts, ends;  // b s
  Out<T, 2> confidence;    // b s
  int64_t blank;
  bool label_loop;

  HOST_DEVICE int64_t steps() const { return log_probs.size(0); }
  HOST_DEVICE int64_t batch() const { return log_probs.size(1); }
  HOST_DEVICE int64_t classes() const { return log_probs.size(2); }
  HOST_DEVICE int64_t width() const { return targets.size(1); }
  HOST_DEVICE int64_t frames(int64_t b) const {
    return classes() == 0 ? 0 : length_of(input_lengths, b, steps());
  }
  HOST_DEVICE int64_t tokens(int64_t b) const { return length_of(target_lengths, b, width()); }
  HOST_DEVICE int64_t token(int64_t b, int64_t i) const {
    return within(targets(b, i), classes() - 1);
  }
  HOST_DEVICE Accum<T> score(int64_t t, int64_t b, int64_t label) const {
    return Accum<T>(log_probs(t, b, label));
  }
  // What is added up of it.
  HOST_DEVICE double term(int64_t t, int64_t b, int64_t label) const {
    return bounded(score(t, b, label));
  }
  // Whether token i may follow token i - 1 without a blank in between.
  HOST_DEVICE bool may_follow(int64_t b, int64_t i) const {
    return i > 0 && (!label_loop || token(b, i) != token(b, i - 1));
  }
};

// How a path came to a state: it stayed, or came from the state before, or from the one before
// that. States are the blanks 0 .. tokens, and between them the tokens 0 .. tokens - 1.
constexpr int kStayed = 0, kStepped = 1, kSkipped = 2;

template <class T, class I>
void check_alignment(const Alignment<T, I>& a) {
  const char* const classes = "the classes of `log_probs`";
  check_range("input_lengths", a.input_lengths, 0, a.steps(), "the steps of `log_probs`");
  check_range("target_lengths", a.target_lengths, 0, a.width(), "the width of `targets`");
  if (a.log_probs.count() > 0 && a.blank >= a.classes())
    refuse("blank", a.blank, 0, a.classes() - 1, classes);
  for (int64_t b = 0; kHostReads && a.classes() == 0 && b < a.batch(); ++b)
    if (length_of(a.input_lengths, b, a.steps()) > 0) refuse("blank", a.blank, 0, -1, classes);
  check_labels("targets", a.targets, a.target_lengths, a.blank, a.classes() - 1, classes);
}

// What no frame has an alignment with: labels -1, scores `value`, spans -1.
template <class T, class I>
HOST_DEVICE void leave_unaligned(const Alignment<T, I>& a, int64_t b, Accum<T> value) {
  for (int64_t t = 0; t < a.frames(b); ++t) {
    a.labels(t, b) = I(-1);
    a.scores(t, b) = T(value);
  }
  for (int64_t i = 0; i < a.tokens(b); ++i) {
    a.starts(b, i) = a.ends(b, i) = I(-1);
    a.confidence(b, i) = T(Accum<T>(0));
  }
}

// What lies beyond a sequence's frames and tokens.
template <class T, class I>
HOST_DEVICE void fill_beyond(const Alignment<T, I>& a, int64_t b) {
  for (int64_t t = a.frames(b); t < a.steps(); ++t) {
    a.labels(t, b) = I(-1);
    a.scores(t, b) = T(Accum<T>(0));
  }
  for (int64_t i = a.tokens(b); i < a.width(); ++i) {
    a.starts(b, i) = a.ends(b, i) = I(-1);
    a.confidence(b, i) = T(Accum<T>(0));
  }
}

// From the end of the best path to its beginning; came(t, i, is_token) tells where it came from.
template <class T, class I, class F>
HOST_DEVICE void trace_back(const Alignment<T, I>& a, int64_t b, bool in_token, F came) {
  using A = Accum<T>;
  int64_t i = in_token ? a.tokens(b) - 1 : a.tokens(b), end = a.frames(b);
  A sum = 0;
  for (int64_t t = a.frames(b) - 1; t >= 0; --t) {
    const int64_t label = in_token ? a.token(b, i) : a.blank;
    const A score = a.score(t, b, label);
    a.labels(t, b) = I(label);
    a.scores(t, b) = T(score);
    sum += in_token ? exp(score) : A(0);
    const int how = came(t, i, in_token);
    if (how == kStayed && t > 0) continue;
    if (in_token) {
      a.starts(b, i) = I(t);
      a.ends(b, i) = I(end);
      a.confidence(b, i) = T(sum / A(end - t));
    }
    sum = 0;
    end = t;
    // A token comes from the blank of its number or from the token before, a blank from the latter.
    const bool from_blank = in_token && how == kStepped;
    i -= from_blank ? 0 : 1;
    in_token = !from_blank;
  }
}

// best of token i = log_probs[t, token i] + max(token i, blank i, token i - 1 where it may follow)
// best of blank i = log_probs[t, blank] + max(blank i, token i - 1)
// Of equal ones the first is taken. `label_loop` false takes token i out of the first. In double,
// whatever the dtype: a way past a label that is ruled out by -1e9 is still told from others.
template <class T, class I>
struct Lattice {
  using A = double;
  Alignment<T, I> a;
  View<A, 3> best;         // two times, blanks and tokens, which begin at 1: before them is -inf
  View<uint8_t, 2> moves;  // t s: how a blank came in bit 0, how a token came above

  KERNEL void advance(Team team, int64_t t, int64_t b) const {
    const View<A, 2> now = at(best, t % 2), next = at(best, (t + 1) % 2);
    team.each(0, a.tokens(b) + 1, [=](int64_t i) {
      const A before = now(1, i), blank = now(0, i);
      const bool stepped = before > blank || before != before;
      next(0, i) = (stepped ? before : blank) + a.term(t, b, a.blank);
      int how = kStayed;
      if (i < a.tokens(b)) {
        A most = a.label_loop ? now(1, i + 1) : lowest<A>();
        if (blank > most) most = blank, how = kStepped;
        if (a.may_follow(b, i) && before > most) most = before, how = kSkipped;
        next(1, i + 1) = most + a.term(t, b, a.token(b, i));
      }
      moves(t, i) = static_cast<uint8_t>(how << 1 | int{stepped});
    });
    team.sync();
  }
  KERNEL void operator()(Team team, int64_t b) const {
    const int64_t frames = a.frames(b), tokens = a.tokens(b);
    const View<A, 2> first = at(best, 0), last = at(best, frames % 2);
    team.each(0, tokens + 1, [=](int64_t i) {
      first(0, i) = i == 0 ? A(0) : lowest<A>();
      first(1, i) = best(1, 1, i) = lowest<A>();
    });
    team.sync();
    for (int64_t t = 0; t < frames; ++t) advance(team, t, b);
    const bool nan = team.any(0, tokens + 1, [=](int64_t i) {
      return last(0, i) != last(0, i) || last(1, i) != last(1, i);
    });
    if (team.rank() > 0) return;
    fill_beyond(a, b);
    const bool in_token = last(1, tokens) >= last(0, tokens) && tokens > 0;
    const A total = in_token ? last(1, tokens) : last(0, tokens);
    if (nan || total == lowest<A>()) {
      return leave_unaligned(a, b, nan ? not_a_number<Accum<T>>() : lowest<Accum<T>>());
    }
    const View<uint8_t, 2> moves = this->moves;
    trace_back(a, b, in_token, [=](int64_t t, int64_t i, bool token) -> int {
      return token ? moves(t, i) >> 1 : moves(t, i) & 1;
    });
  }
};

template <class T, class I>
void forced_align(Device& dev, In<T, 3> log_probs, In<I, 2> targets, In<int32_t, 1> input_lengths,
                  In<int32_t, 1> target_lengths, Out<I, 2> labels, Out<T, 2> scores,
                  Out<I, 2> starts, Out<I, 2> ends, Out<T, 2> confidence, int64_t blank,
                  bool label_loop) {
  const Alignment<T, I> a{log_probs, targets, input_lengths, target_lengths, labels,    scores,
                          starts,    ends,    confidence,    blank,          label_loop};
  check_alignment(a);
  const int64_t states = a.width() + 1, steps = a.steps();
  auto memory = dev.template workspace<uint8_t>(a.batch() * steps * states);
  const View<uint8_t, 3> moves = dense(memory.data(), a.batch(), steps, states);
  const auto align = [=] KERNEL(Team team, int64_t b, View<double, 1> scratch) {
    Lattice<T, I>{a, dense(scratch.data, 2, 2, states + 1), at(moves, b)}(team, b);
  };
  for_each_item<double>(dev, a.batch(), 4 * (states + 1), align);
}

}  // namespace nativeops
