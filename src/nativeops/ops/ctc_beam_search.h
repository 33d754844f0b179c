// SPDX-License-Identifier: Apache-2.0
// CTC prefix beam search. Declared in ctc_beam_search.py. On the CPU only: its tree grows as it
// goes, and a sequence is one thread's work.
#pragma once
#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/prefix_search.h"

namespace nativeops {

namespace prefix_search {

// log softmax of a frame, or the frame as it is. False where it has a NaN or a positive infinity.
template <class T>
bool read_frame(const In<T, 1>& logits, bool normalized, std::vector<double>& to) {
  double largest = kNever, sum = 0;
  bool valid = true;
  for (int64_t c = 0; c < logits.size(0); ++c) {
    to[c] = static_cast<Accum<T>>(logits(c));
    valid = valid && to[c] <= Extreme<double>::most;
    largest = max2(largest, to[c]);
  }
  if (normalized || largest == kNever) return valid;
  for (double value : to) sum += exp(value - largest);
  const double log_sum = log(sum);
  for (double& value : to) value = (value - largest) - log_sum;
  return valid;
}

// What an op makes, of sequence b.
template <class T>
struct Found {
  Out<int32_t, 3> tokens;
  Out<int32_t, 1> lengths;
  Out<T, 1> scores;
  Out<int32_t, 3> frames;
  int64_t b;

  // Where there is no hypothesis. The score is -infinity, or NaN if a frame has one.
  void clear(double score) const {
    for (int64_t n = 0; n < lengths.size(0); ++n) {
      lengths(n) = 0;
      scores(n) = T(static_cast<Accum<T>>(score));
      for (int64_t t = 0; t < tokens.size(2); ++t) tokens(b, n, t) = frames(b, n, t) = -1;
    }
  }
  void put(int64_t n, const Search& search, const Hypothesis& h) const {
    scores(n) = T(static_cast<Accum<T>>(search.score(h)));
    int64_t prefix = h.prefix, time = h.better().times;
    int64_t i = search.prefixes()[prefix].length;
    lengths(n) = static_cast<int32_t>(i);
    for (; i > 0; prefix = search.prefixes()[prefix].parent, time = search.times()[time].before) {
      --i;
      tokens(b, n, i) = static_cast<int32_t>(search.prefixes()[prefix].label);
      frames(b, n, i) = static_cast<int32_t>(search.times()[time].frame);
    }
  }
};

template <class T>
void search_sequence(const In<T, 2>& logits, int64_t length, bool normalized,
                     const Options& options, const Found<T>& found) {
  const int64_t labels = logits.size(1);
  std::vector<double> frame(static_cast<size_t>(labels));
  Search search(options);
  found.clear(kNever);
  for (int64_t t = 0; t < length; ++t) {
    if (labels == 0) return;
    if (!read_frame(at(logits, t), normalized, frame)) {
      return found.clear(std::numeric_limits<double>::quiet_NaN());
    }
    search.step(frame.data(), labels, t);
  }
  const auto count = static_cast<int64_t>(search.beam().size());
  for (int64_t n = 0; n < min2(found.lengths.size(0), count); ++n) {
    found.put(n, search, search.beam()[static_cast<size_t>(n)]);
  }
}

inline void check(const In<int32_t, 1>& lengths, int64_t frames, int64_t labels, int64_t blank,
                  int64_t beam_width, int64_t n_best) {
  if (blank >= labels && labels > 0)
    refuse("blank", blank, -1, labels - 1, "where -1 is the last class of `logits`");
  if (n_best > beam_width) refuse("n_best", n_best, 1, beam_width, "which is `beam_width`");
  check_range("lengths", lengths, 0, frames, "the frames of `logits`");
}

}  // namespace prefix_search

template <class T>
void ctc_prefixes(Device& dev, In<T, 3> logits, In<int32_t, 1> lengths, Out<int32_t, 3> tokens,
                  Out<int32_t, 2> token_lengths, Out<T, 2> scores, Out<int32_t, 3> frames,
                  int64_t beam_width, int64_t n_best, int64_t blank, bool normalized,
                  double token_threshold, double insertion_bonus) {
  using namespace prefix_search;
  const int64_t steps = logits.size(0), labels = logits.size(2);
  check(lengths, steps, labels, blank, beam_width, n_best);
  const Options options{beam_width, blank < 0 ? labels - 1 : blank, log(token_threshold),
                        insertion_bonus};
  dev.parallel(logits.size(1), [&](int64_t b) {
    const In<T, 2> own{
        logits ? &logits(0, b, 0) : nullptr, {steps, labels}, {logits.stride(0), logits.stride(2)}};
    search_sequence(own, lengths ? lengths(b) : steps, normalized, options,
                    Found<T>{tokens, at(token_lengths, b), at(scores, b), frames, b});
  });
}

}  // namespace nativeops
