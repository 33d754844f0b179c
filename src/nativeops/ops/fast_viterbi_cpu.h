// SPDX-License-Identifier: Apache-2.0
// The best path of automata, with vectors where their arcs are diagonals; a sequence on each
// thread, or a long one on all of them. Declared in fast_viterbi.py.
#pragma once
#include "nativeops/devices/cpu/band_path.h"
#include "nativeops/ops/fast_viterbi.h"

namespace nativeops::tuned {

// As nativeops::TeamPaths: a thread for each sequence, or all of them for a long one.
struct BandPaths {
  template <class T, class F>
  static void run(Device& dev, const Index<T>&, int64_t, F search_of, Out<T, 1> scores,
                  int64_t mask_idx) {
    const int64_t batch = scores.size(0);
    const auto solve = [&](int64_t b, bool shared) {
      const PathSearch<T> search = search_of(b);
      const int64_t states = search.graph.states();
      const int64_t most = ceil_div(states, BandSizes::kRange);
      const int64_t ranges = min2<int64_t>(dev.num_threads(), most);
      const bool large = ranges > batch && search.frames * states >= BandSizes::kShared;
      if (shared && !large) return;
      const Diagonals diagonals(search.graph);
      const bool fits = diagonals.fit_forward();
      if (shared != (large && fits && leads_forward(search.graph, diagonals))) return;
      const double score =
          fits ? BandPath<T>(dev, search, diagonals, shared ? ranges : 1).run(mask_idx)
               : walk(dev, search, mask_idx);
      scores(b) = T(static_cast<Accum<T>>(score));
    };
    dev.parallel(batch, [&](int64_t b) { solve(b, false); });
    for (int64_t b = 0; b < batch; ++b) solve(b, true);
  }

 private:
  template <class T>
  static double walk(Device& dev, const PathSearch<T>& search, int64_t mask_idx) {
    const int64_t width = search.graph.capacity, part = part_of(search.frames, width);
    const auto best = dev.workspace<double>((3 + ceil_div(search.frames, part) + 1) * width);
    const auto came = dev.workspace<int32_t>(part * width);
    return BestPath<T>{search, {best.data(), came.data(), width, part}}(Team{}, mask_idx);
  }
};

template <class T>
constexpr auto fast_viterbi = nativeops::fast_viterbi<T, BandPaths>;

}  // namespace nativeops::tuned
