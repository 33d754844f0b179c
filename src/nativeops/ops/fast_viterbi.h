// SPDX-License-Identifier: Apache-2.0
// The best path of automata. Declared in fast_viterbi.py.
#pragma once
#include <limits>

#include "nativeops/devices/best_path.h"

namespace nativeops {

// Each sequence is the work of one team; search_of(b) is what it is given.
struct TeamPaths {
  template <class T, class F>
  static void run(Device& dev, const Index<T>& index, int64_t steps, F search_of, Out<T, 1> scores,
                  int64_t mask_idx) {
    const int64_t part = part_of(steps, index.width), parts = ceil_div(steps, part);
    auto best = dev.template workspace<double>((3 + parts + 1) * index.width);
    auto came = dev.template workspace<int32_t>(part * index.width);
    const Trellis trellis{best.data(), came.data(), index.width, part};
    for_each_item(dev, scores.size(0), [=] KERNEL(Team team, int64_t b) {
      const PathSearch<T> search = search_of(b);
      const double score = BestPath<T>{search, trellis.from(search.graph.base)}(team, mask_idx);
      if (team.rank() == 0) scores(b) = T(static_cast<Accum<T>>(score));
    });
  }
};

// scores[b] = max over all paths of Σ_t am_scores[t, b, class] - weight of the edge, less the cost
// of the end; alignment[t, b]: the class that the best path has there
template <class T, class Walk = TeamPaths>
void fast_viterbi(Device& dev, In<T, 3> am_scores, In<int32_t, 2> edges, In<T, 1> weights,
                  In<int32_t, 2> start_end_states, In<int32_t, 1> lengths,
                  In<int32_t, 2> end_states, In<T, 1> end_weights, Out<int32_t, 2> alignment,
                  Out<T, 1> scores, int64_t mask_idx) {
  const int64_t steps = am_scores.size(0);
  const Automata<T> automata{edges,
                             weights,
                             start_end_states,
                             end_states,
                             end_weights,
                             am_scores.size(2),
                             std::numeric_limits<Accum<T>>::lowest()};
  check_range("lengths", lengths, 0, steps, "the steps of `am_scores`");
  check_automata(automata, "am_scores");
  if (scores.size(0) == 0) return;
  const Index<T> index(dev, automata);
  make_index(dev, automata, index);
  const Graph<Accum<T>> all = index.all();
  const int64_t* const begin = index.begin();
  const auto search_of = [=] KERNEL(int64_t b) {
    return PathSearch<T>{am_scores, automata, graph_of(all, begin, b),
                         alignment, b,        length_of(lengths, b, steps)};
  };
  Walk::run(dev, index, steps, search_of, scores, mask_idx);
}

}  // namespace nativeops
