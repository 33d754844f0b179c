// SPDX-License-Identifier: Apache-2.0
// The best path of automata whose arcs are diagonals (diagonals.h), as those of CTC and of HMMs:
// states in the lanes of vectors. The way forward has only scores; how the best path's states were
// reached is found on the way back, from the same scores and by the portable kernel's rule for
// equally good arcs. All threads share a long sequence if no arc leads back; else it takes one.
#pragma once
#include <atomic>
#include <utility>
#include <vector>

#include "nativeops/devices/best_path.h"
#include "nativeops/devices/cpu/diagonals.h"
#include "nativeops/devices/cpu/phases.h"
#include "nativeops/devices/cpu/unroll.h"

namespace nativeops::tuned {

// Sizes of BandPath.
struct BandSizes {
  static constexpr int32_t kBlock = 16;   // states: whole vectors, and whole lines of the cache
  static constexpr int32_t kRange = 256;  // states that are worth a thread
  static constexpr int64_t kChunk = 32;   // frames after which threads wait for each other
  static constexpr int64_t kAhead = 8;    // frames that are asked for before they are needed
  // States in all frames that are worth waking other threads.
  static constexpr int64_t kShared = 1 << 20;

  // The numbers of a row: whole blocks, and what arcs of diagonals from beyond the ends read.
  static int64_t width(int64_t states) { return round_up(states, kBlock) + 2 * kFar; }
};

// Rows of numbers in time, the last `depth` of them. Arcs of a diagonal from states before the
// first or behind the last one are read as well, but have no weight.
template <class V>
class Ring {
 public:
  Ring(Device& dev, int64_t depth, int64_t states)
      : depth_(depth),
        stride_(BandSizes::width(states)),
        memory_(dev.workspace<V>(depth * stride_)) {}
  V* at(int64_t t) const { return memory_.data() + t % depth_ * stride_ + kFar; }

 private:
  int64_t depth_, stride_;
  Workspace<V> memory_;
};

// Whether paths end in a state, as no arc leaves it.
template <class A>
bool is_last(const Graph<A>& g, int32_t s) {
  return g.list(kOutBegin)[s] == g.list(kOutBegin)[s + 1];
}

template <class T>
class BandPath : BandSizes {
  using A = Accum<T>;

 public:
  // ranges: of states, each the work of a thread.
  BandPath(Device& dev, const PathSearch<T>& search, const Diagonals& diagonals, int64_t ranges)
      : dev_(dev),
        search_(search),
        diagonals_(diagonals),
        ranges_(ranges),
        frames_(search.frames),
        states_(search.graph.states()),
        blocks_(ceil_div(states_, kBlock)),
        part_(part_of(frames_, width(states_))),
        kept_(dev, frames_ / part_ + 1, states_),
        rows_(dev, min2(frames_, max2(part_, ranges * kChunk + 1)), states_),
        emissions_(dev, min2((ranges + 1) * kChunk, frames_), search.graph.slots()),
        emitted_(blocks_ * kBlock),
        slot_(diagonals.slot),
        weights_(diagonals.ahead.size(), std::vector<double>(emitted_.size(), highest<double>())) {
    const Graph<A>& g = search.graph;
    slot_.resize(emitted_.size());
    for (int32_t s = 0; s < states_; ++s) {
      for (int32_t i = g.list(kInBegin)[s]; i < g.list(kInBegin)[s + 1]; ++i) {
        const int32_t which = diagonals.of[i];
        if (which >= 0) weights_[which][s] = search.weight(g.list(kInEdge)[i]);
      }
    }
    for (const int32_t s : diagonals.odd_in) (is_last(g, s) ? last_ : odd_).push_back(s);
  }

  double run(int64_t mask_idx) {
    forward();
    double total = 0;
    const bool sick = search_.graph.sick() || sick_;
    const int32_t state = search_.finish(Team{}, row(frames_), sick, mask_idx, &total);
    if (state >= 0) trace_back(state);
    return total;
  }

 private:
  // The best scores before frame t; those before each part of the frames are kept.
  double* row(int64_t t) const { return t % part_ == 0 ? kept_.at(t / part_) : rows_.at(t); }

  // A wave: in step n, range r of the states is in chunk n - 1 - r of the frames, so that what arcs
  // from earlier ranges bring is there. The scores of chunk n are gathered meanwhile.
  void forward() {
    std::fill(row(0), row(0) + states_, lowest<double>());
    row(0)[0] = 0;
    const int64_t steps = ceil_div(frames_, kChunk) + ranges_, all = frames_ * states_;
    run_phases(dev_, steps, ranges_, all, [&](int64_t, int64_t n, int64_t r) {
      const int64_t next = n * kChunk, end = next + (r + 1) * kChunk / ranges_;
      for (int64_t t = next + r * kChunk / ranges_; t < min2(end, frames_); ++t) gather(t);
      const int64_t low = (n - 1 - r) * kChunk, high = min2(low + kChunk, frames_);
      for (int64_t t = max2<int64_t>(low, 0); t < high; ++t) {
        advance(t, r * blocks_ / ranges_, (r + 1) * blocks_ / ranges_, of_row(emissions_.at(t)));
      }
    });
    for (const int32_t s : last_) {
      if (frames_ == 0) break;
      const int64_t t = frames_ - 1;
      row(frames_)[s] = search_.arrive(s, row(t), of_row(emissions_.at(t))).score;
    }
  }
  static auto of_row(const A* all) {
    return [all](int32_t slot) __attribute__((always_inline)) { return all[slot]; };
  }
  auto of_frame(int64_t t) const {
    return [this, t](int32_t slot) { return search_.score(t, slot); };
  }
  void gather(int64_t t) {
    const int32_t slots = search_.graph.slots(), *const classes = search_.graph.list(kClasses);
    const int64_t later = min2(t + kAhead, frames_ - 1);
    A* const to = emissions_.at(t);
    bool sick = false;
    for (int32_t i = 0; i < slots; ++i) {
      // Into the second cache: the first would have too few requests under way at a time.
      __builtin_prefetch(&search_.scores(later, search_.b, classes[i]), 0, 2);
      to[i] = search_.score(t, i);
      sick |= !(to[i] < highest<A>());
    }
    if (sick) sick_ = true;
  }

  // Frame t for the states of blocks low .. high - 1, by emission(slot).
  template <class F>
  void advance(int64_t t, int64_t low, int64_t high, F emission) {
    const double* const before = row(t);
    double* const next = row(t + 1);
    const int32_t* const slot = slot_.data();
    A* const emitted = emitted_.data();
    NATIVEOPS_IVDEP
    for (int64_t s = low * kBlock; s < high * kBlock; ++s) emitted[s] = emission(slot[s]);
    simd::with_one_of<1, 2, 3, kDiagonals>(
        diagonals_.count(), [&](auto count) { by_diagonals<count>(low, high, before, next); });
    for (const int32_t s : odd_) {
      if (low <= s / kBlock && s / kBlock < high)
        next[s] = search_.arrive(s, before, emission).score;
    }
  }
  template <int D>
  void by_diagonals(int64_t low, int64_t high, const double* before, double* next) const {
    const double *from[D], *weight[D];
    for (int d = 0; d < D; ++d) {
      from[d] = before - diagonals_.ahead[d];
      weight[d] = weights_[d].data();
    }
    const A* const emitted = emitted_.data();
    NATIVEOPS_IVDEP
    for (int64_t s = low * kBlock; s < high * kBlock; ++s) {
      double most = lowest<double>();
      for (int d = 0; d < D; ++d) {
        const double score = (from[d][s] + double(emitted[s])) - weight[d][s];
        most = score > most ? score : most;
      }
      next[s] = most;
    }
  }

  void trace_back(int32_t state) {
    for (int64_t low, high = frames_; high > 0; high = low) {
      low = (high - 1) / part_ * part_;
      if (part_ < frames_) run_part(state, low, high);
      for (int64_t t = high - 1; t >= low; --t) {
        state = search_.step_back(Team{}, t, search_.arrive(state, row(t), of_frame(t)).arc);
      }
    }
  }
  // The rows of frames low .. high - 1 once more, where a path that ends in `state` can be.
  void run_part(int32_t state, int64_t low, int64_t high) {
    int32_t first = state, last = state;
    const auto widen = [&, g = search_.graph](int32_t s) {
      for (int32_t i = g.list(kInBegin)[s]; i < g.list(kInBegin)[s + 1]; ++i) {
        first = std::min(first, g.list(kInFrom)[i]);
        last = std::max(last, g.list(kInFrom)[i]);
      }
    };
    widen(state);
    for (int64_t t = high - 1; t > low && (first > 0 || last < states_ - 1); --t) {
      const int32_t least = first, most = last;
      first = std::max(first - std::max(diagonals_.ahead.back(), 0), 0);
      last = std::min(last - std::min(diagonals_.ahead.front(), 0), states_ - 1);
      for (const int32_t s : odd_) {
        if (least <= s && s <= most) widen(s);
      }
    }
    for (int64_t t = low; t < high - 1; ++t) {
      advance(t, first / kBlock, last / kBlock + 1, of_frame(t));
    }
  }

  Device& dev_;
  const PathSearch<T>& search_;
  const Diagonals& diagonals_;
  const int64_t ranges_, frames_;
  const int32_t states_;
  const int64_t blocks_, part_;
  Ring<double> kept_, rows_;
  Ring<A> emissions_;                       // scores by slot, of the chunks in the wave
  std::vector<A> emitted_;                  // the same by state, of one frame
  std::vector<int32_t> slot_, odd_, last_;  // odd states, and those that matter only at the end
  std::vector<std::vector<double>> weights_;
  std::atomic<bool> sick_{false};
};

// Whether arcs lead to the same or a later state, but for those into states that none leaves.
template <class A>
bool leads_forward(const Graph<A>& g, const Diagonals& diagonals) {
  const auto from_earlier = [&](int32_t s) {
    const int32_t* const from = g.list(kInFrom);
    return std::all_of(from + g.list(kInBegin)[s], from + g.list(kInBegin)[s + 1],
                       [=](int32_t f) { return f <= s; });
  };
  return diagonals.ahead.front() >= 0 &&
         std::all_of(diagonals.odd_in.begin(), diagonals.odd_in.end(),
                     [&](int32_t s) { return is_last(g, s) || from_earlier(s); });
}

}  // namespace nativeops::tuned
