// SPDX-License-Identifier: Apache-2.0
// The best path of a CTC lattice, tuned for the CPU: a sequence on each thread, its states in the
// lanes of vectors; of fewer sequences than that, all threads gather the scores. Declared in
// forced_align.py.
#pragma once
#include "nativeops/devices/cpu/pack.h"
#include "nativeops/devices/cpu/simd.h"
#include "nativeops/ops/forced_align.h"

namespace nativeops::tuned {

// Frames whose scores are gathered in one go: while a processor waits for some of them, it asks for
// the next ones.
constexpr int64_t kFrames = 32;
constexpr int64_t kShared = 1 << 19;  // scores that are worth waking other threads for
constexpr int64_t kAhead = 8;         // frames that are asked for before they are needed

// How each state was reached in a frame: a bit for each, a vector's to a word. Blanks in one plane,
// whether they stepped; tokens in two, whether they stepped, and whether they skipped.
class Moves {
 public:
  Moves(Device& dev, int64_t frames, int64_t words)
      : words_(words), memory_(dev.workspace<uint8_t>(frames * 3 * words)) {}

  void set(int64_t t, int plane, int64_t word, uint32_t bits) {
    memory_[(t * 3 + plane) * words_ + word] = static_cast<uint8_t>(bits);
  }
  bool get(int64_t t, int plane, int64_t i, int lanes) const {
    return memory_[(t * 3 + plane) * words_ + i / lanes] >> i % lanes & 1;
  }

 private:
  int64_t words_;
  Workspace<uint8_t> memory_;
};

template <class T, class I>
class LatticeVectors {
  using A = double;
  using V = simd::Vec<A>;
  static constexpr int kLanes = simd::kLanes<A>;
  static_assert(kLanes <= 8, "a word of `Moves`");

 public:
  // room: frames whose scores are gathered at once, a multiple of kFrames.
  LatticeVectors(Device& dev, const Alignment<T, I>& a, int64_t b, int64_t room)
      : a_(a),
        b_(b),
        frames_(a.frames(b)),
        tokens_(a.tokens(b)),
        words_((tokens_ + kLanes) / kLanes),
        width_(words_ * kLanes),
        room_(room),
        memory_(dev.workspace<A>((room + 4) * width_ + room)),
        place_(dev.workspace<int64_t>(tokens_)),
        moves_(dev, frames_, words_) {
    blank_ = memory_.data();
    skip_ = blank_ + width_;
    token_ =
        skip_ + 2 * width_;  // the vector before it stays -inf: there is no token before the first
    emitted_ = token_ + width_;
    blanks_ = emitted_ + room * width_;
    for (A* p = blank_; p < blanks_; ++p) *p = lowest<A>();
    blank_[0] = 0;
    for (int64_t i = 0; i < tokens_; ++i) {
      place_[i] = a.token(b, i) * a.log_probs.stride(2);
      skip_[i] = a.may_follow(b, i) ? A(0) : lowest<A>();
    }
  }

  // share(n, f) calls f(0), ..., f(n - 1), on one thread or on many.
  template <class Share>
  void run(Share&& share) {
    for (int64_t t = 0; t < frames_; t += room_) {
      const int64_t count = min2(room_, frames_ - t);
      share(ceil_div(count, kFrames), [&](int64_t block) {
        const int64_t first = block * kFrames;
        gather(t, first, min2(first + kFrames, count));
      });
      for (int64_t k = 0; k < count; ++k) {
        advance(t + k, emitted_ + k * width_, blanks_[k]);
      }
    }
    bool nan = false;
    for (int64_t i = 0; i <= tokens_; ++i) nan |= blank_[i] != blank_[i];
    for (int64_t i = 0; i < tokens_; ++i) nan |= token_[i] != token_[i];
    const bool in_token = tokens_ > 0 && token_[tokens_ - 1] >= blank_[tokens_];
    const A total = in_token ? token_[tokens_ - 1] : blank_[tokens_];
    fill_beyond(a_, b_);
    if (nan || total == lowest<A>()) {
      return leave_unaligned(a_, b_, nan ? not_a_number<Accum<T>>() : lowest<Accum<T>>());
    }
    trace_back(a_, b_, in_token, [&](int64_t t, int64_t i, bool token) -> int {
      if (!token) return moves_.get(t, 0, i, kLanes);
      return moves_.get(t, 2, i, kLanes) ? kSkipped : moves_.get(t, 1, i, kLanes);
    });
  }

 private:
  void gather(int64_t t, int64_t first, int64_t end) {
    for (int64_t k = first; k < end; ++k) {
      const T* row = &a_.log_probs(t + k, b_, 0);
      const T* later = &a_.log_probs(min2(t + k + kAhead, frames_ - 1), b_, 0);
      A* to = emitted_ + k * width_;
      const int64_t* place = place_.data();
      for (int64_t i = 0; i < tokens_; ++i) {
        __builtin_prefetch(later + place[i], 0, 2);
        to[i] = bounded(static_cast<A>(row[place[i]]));
      }
      blanks_[k] = bounded(static_cast<A>(row[a_.blank * a_.log_probs.stride(2)]));
    }
  }

  // As `Lattice::advance`, from the last state to the first, since each is read by the next ones.
  void advance(int64_t t, const A* emitted, A blank_score) {
    const V score = simd::broadcast(blank_score), none = simd::broadcast(lowest<A>());
    for (int64_t word = words_ - 1; word >= 0; --word) {
      const int64_t i = word * kLanes;
      const V before = simd::load(token_ + i - 1), blank = simd::load(blank_ + i);
      const auto to_blank = (before.raw > blank.raw) | (before.raw != before.raw);
      simd::store(blank_ + i, V{to_blank ? before.raw : blank.raw} + score);
      const V stay = a_.label_loop ? simd::load(token_ + i) : none;
      const auto stepped = blank.raw > stay.raw;
      const V best{stepped ? blank.raw : stay.raw}, over = before + simd::load(skip_ + i);
      const auto skipped = over.raw > best.raw;
      simd::store(token_ + i, V{skipped ? over.raw : best.raw} + simd::load(emitted + i));
      moves_.set(t, 0, word, simd::lanes_of<A>(reinterpret_cast<simd::Truth>(to_blank)));
      moves_.set(t, 1, word, simd::lanes_of<A>(reinterpret_cast<simd::Truth>(stepped)));
      moves_.set(t, 2, word, simd::lanes_of<A>(reinterpret_cast<simd::Truth>(skipped)));
    }
  }

  const Alignment<T, I>& a_;
  const int64_t b_, frames_, tokens_;
  const int64_t words_, width_, room_;  // vectors for all blanks, and their lanes
  Workspace<A> memory_;
  Workspace<int64_t> place_;  // of each token's score in a row
  Moves moves_;
  A *blank_, *skip_, *token_, *emitted_, *blanks_;
};

template <class T, class I>
void forced_align(Device& dev, In<T, 3> log_probs, In<I, 2> targets, In<int32_t, 1> input_lengths,
                  In<int32_t, 1> target_lengths, Out<I, 2> labels, Out<T, 2> scores,
                  Out<I, 2> starts, Out<I, 2> ends, Out<T, 2> confidence, int64_t blank,
                  bool label_loop) {
  const Alignment<T, I> a{log_probs, targets, input_lengths, target_lengths, labels,    scores,
                          starts,    ends,    confidence,    blank,          label_loop};
  check_alignment(a);
  const bool are_few = 2 * a.batch() <= dev.num_threads();
  const auto is_long = [&](int64_t b) { return are_few && a.frames(b) * a.tokens(b) >= kShared; };
  dev.parallel(a.batch(), [&](int64_t b) {
    if (is_long(b)) return;
    LatticeVectors<T, I>(dev, a, b, kFrames).run([](int64_t n, auto gather) {
      for (int64_t i = 0; i < n; ++i) gather(i);
    });
  });
  for (int64_t b = 0; b < a.batch(); ++b) {
    if (!is_long(b)) continue;
    const int64_t room = round_up(kShared / a.tokens(b), kFrames);
    LatticeVectors<T, I>(dev, a, b, room).run([&](int64_t n, auto gather) {
      dev.parallel(n, gather);
    });
  }
}

}  // namespace nativeops::tuned
