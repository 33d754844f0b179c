// SPDX-License-Identifier: Apache-2.0
// Threads inside a sequence of forward_backward.h: where there are at least twice as many threads
// as sequences, each is walked from both ends at once, which leaves what every part of its frames
// begins and ends with; then all parts are walked side by side. Each number is computed by the same
// steps as by one thread, so its bits are the same.
#pragma once
#include <optional>

#include "nativeops/devices/cpu/share.h"
#include "nativeops/devices/forward_backward.h"

namespace nativeops::tuned {

// A thread's passes over one sequence after another, with numbers of its own.
template <class T, class P>
class Walker {
 public:
  using A = Accum<T>;
  Walker(Device& dev, const Index<T>& index, const Costs<T>& costs, const History<A>& history,
         int64_t own_rows)
      : index_(&index),
        costs_(costs),
        numbers_(dev, kNumbers, index.width),
        rows_(dev, own_rows, index.width),
        history_(history) {
    if (own_rows > 0) history_.rows = rows_.first();
  }

  const P& of(int64_t b) {
    if (passes_ && b == b_) return *passes_;
    const Graph<A> shared = graph_of(index_->all(), index_->begin(), b);
    Graph<A> own = shared;
    own.m = numbers_.first().m, own.k = numbers_.first().k;
    const int32_t* const arcs = shared.list(kInBegin) + shared.states();
    for (const auto& [which, n] :
         {std::pair(kInWeight, *arcs), {kOutWeight, *arcs}, {kEnd, shared.states()}}) {
      for (int32_t i = 0; i < n; ++i) own.row(which).set(i, shared.row(which)[i]);
    }
    passes_.emplace(own, costs_, history_.of(costs_.frames(b)));
    b_ = b;
    return *passes_;
  }

 private:
  const Index<T>* index_;
  Costs<T> costs_;
  Rows<A> numbers_, rows_;
  History<A> history_;
  int64_t b_ = 0;
  std::optional<P> passes_;
};

// Edges times frames: below that, threads wait for each other longer than they share.
constexpr int64_t kLong = 1 << 17;

// As nativeops::TeamEach, with threads also inside of sequences.
template <class P>
struct BothEnds {
  template <class T>
  static bool are_few(Device& dev, const Index<T>& index, const Costs<T>& costs) {
    return 2 * costs.places.batch <= dev.num_threads() && costs.places.steps * index.width >= kLong;
  }

  template <class T, class F>
  static void run(Device& dev, const Memory<T>& memory, const Costs<T>& costs, const F& f) {
    const Index<T>& index = memory.index;
    if (!are_few(dev, index, costs)) return TeamEach<P>::run(dev, memory, costs, f);
    using A = Accum<T>;
    const int64_t batch = costs.places.batch, parts = memory.parts;
    const int64_t work = costs.places.steps * index.width;
    const Rows<A> kept(dev, parts, index.width);
    const Row<A> behind = kept.first();  // of each part
    auto found = dev.template workspace<int8_t>(batch);
    const auto make = [&] {
      return Walker<T, P>(dev, index, costs, memory.history(), memory.whole ? 0 : parts + 1);
    };
    const Team team;
    share(dev, 2 * batch, work, make, [&](auto& walker, int64_t task) {
      const int64_t b = task / 2;
      const P& passes = walker.of(b);
      if (task % 2 == 1) return leave_marks(passes, team, b, behind);
      const Scaled<A> sum = passes.total(passes, team, b);
      found[b] = f.found(team, b, passes, sum, passes.sick(team) || is_beyond(sum));
    });
    share(dev, batch * parts, work, make, [&](auto& walker, int64_t task) {
      const int64_t b = task / parts, p = task % parts;
      if (!found[b] || p * root_of(costs.frames(b)) >= costs.frames(b)) return;
      const P& passes = walker.of(b);
      const Row<A> beta = passes.history.at(behind, p, passes.graph.base);
      passes.part_back(passes, team, b, p, beta, true, f);
    });
    if (!f.sums_up()) return;
    share(dev, batch, 0, make, [&](auto& walker, int64_t b) {
      if (found[b]) f.finish(team, b, walker.of(b));
    });
  }

  // Also in many sequences a sum is that of the halves before and after the frame in the middle, so
  // that its bits do not depend on how many there are.
  template <class T, class F>
  static void totals(Device& dev, const Index<T>& index, const Costs<T>& costs, const F& found) {
    using A = Accum<T>;
    const int64_t batch = costs.places.batch, ways = are_few(dev, index, costs) ? 2 : 1;
    const Rows<A> middle(dev, 2, index.width);
    const auto row = [&](int64_t way, int64_t base) {
      const int64_t at = way * index.width + base;
      return Row<A>{middle.first().m + at, middle.first().k + at};
    };
    auto sick = dev.template workspace<int8_t>(2 * batch);
    const Team team;
    const auto walk = [&](const P& passes, int64_t b, int64_t way) {
      const int64_t half = costs.frames(b) / 2;
      const Row<A> reached =
          way == 0 ? passes.run_to(passes, team, b, half) : run_back_to(passes, team, b, half);
      passes.copy(team, reached, row(way, passes.graph.base));
      sick[2 * b + way] = passes.sick(team);
    };
    const auto join = [&](int64_t b) {
      const Graph<A> g = graph_of(index.all(), index.begin(), b);
      const Row<A> before = row(0, g.base), behind = row(1, g.base);
      const Scaled<A> sum =
          team_sum<A>(team, g.states(), [=](int64_t s) { return before[s] * behind[s]; });
      found(team, b, sum, sick[2 * b] || sick[2 * b + 1] || is_beyond(sum));
    };
    const auto make = [&] { return Walker<T, P>(dev, index, costs, {}, 0); };
    const int64_t work = costs.places.steps * index.width;
    share(dev, ways * batch, work, make, [&](auto& walker, int64_t task) {
      const int64_t b = task / ways;
      for (int64_t way = task % ways; way < 2; way += ways) walk(walker.of(b), b, way);
      if (ways == 1) join(b);
    });
    for (int64_t b = 0; ways == 2 && b < batch; ++b) join(b);
  }

 private:
  // From the end to the second part: what is behind each part.
  template <class A>
  static void leave_marks(const P& passes, Team team, int64_t b, Row<A> behind) {
    const int64_t frames = passes.costs.frames(b), part = passes.history.part;
    Row<A> beta = passes.graph.row(kBeta), next = passes.graph.row(kBetaNext);
    passes.copy(team, passes.graph.row(kEnd), beta);
    for (int64_t p = passes.parts(b) - 1; p >= 0; --p) {
      passes.copy(team, beta, passes.history.at(behind, p, passes.graph.base));
      if (p == 0) break;
      for (int64_t t = min2(frames, (p + 1) * part) - 1; t >= p * part; --t) {
        passes.retreat(team, t, b, beta, next);
        std::swap(beta, next);
      }
    }
  }
  // As Passes::run_to, from the end: the row before frame `low`.
  static auto run_back_to(const P& passes, Team team, int64_t b, int64_t low) {
    auto now = passes.graph.row(kBeta), next = passes.graph.row(kBetaNext);
    passes.start(team, now);
    passes.copy(team, passes.graph.row(kEnd), now);
    for (int64_t t = passes.costs.frames(b) - 1; t >= low; --t) {
      passes.retreat(team, t, b, now, next);
      std::swap(now, next);
    }
    return now;
  }
};

}  // namespace nativeops::tuned
