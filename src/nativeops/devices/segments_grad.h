// SPDX-License-Identifier: Apache-2.0
// The way back over the frames of a segmental model, which gives the gradients of its sum.
#pragma once
#include "nativeops/devices/segments.h"

namespace nativeops {

// The way back, and what flows into the arguments: d_out[b] times how much of all paths' weight
// have a segment of a class, an edge, an edge of a model and a length, an end; the scores', which
// add where the others are costs, with a minus.
template <class T>
struct SegmentalGrad {
  using A = Accum<T>;
  Out<T, 4> d_scores;
  Out<T, 1> d_weights, d_end_weights;
  In<T, 1> d_out;
  Automata<T> automata;
  Row<A> history;  // what was reached after each frame
  Row<A> shares;   // of each arc and length in a frame
  A* taken;        // and in all frames

  // Before a sequence's way back; `value` where it has none.
  KERNEL void clear(Team team, const Segments<T>& walk, A value) const {
    A* const own = taken + walk.graph.base * walk.room;
    team.each(0, walk.arcs() * walk.room, [=](int64_t j) { own[j] = value; });
    team.sync();
  }
  // The gradients of all scores in a frame: `value` for the first lengths, 0 for the others.
  KERNEL void fill(Team team, int64_t t, int64_t b, int64_t count, A value) const {
    const Out<T, 4> to = d_scores;
    team.each_by_warp(0, to ? to.size(0) : 0, [=](Warp warp, int64_t i) {
      warp.each(0, to.size(3), [=](int64_t c) { to(i, t, b, c) = T(i < count ? value : A(0)); });
    });
    team.sync();
  }
  KERNEL void write_ends(Team team, const Segments<T>& walk, int64_t b, int64_t frames,
                         Scaled<A> all, bool sick) const {
    if (!d_end_weights) return;
    const SegmentalGrad self = *this;
    const int64_t last = walk.place(frames);
    each_end(team, automata, walk.graph, b, [=](int64_t i, int32_t s) {
      if (s < 0 && !sick) return;
      const Scaled<A> end = scaled_exp(self.automata.end_cost(i));
      const A share = sick ? not_a_number<A>() : share_of(walk.since(s, last)[0] * end, all);
      self.d_end_weights(i) = T(A(self.d_out(b)) * share);
    });
    team.sync();
  }
  KERNEL void write_weights(Team team, const Segments<T>& walk, int64_t b) const {
    const int32_t* const edge = walk.graph.list(kPlaceEdge);
    const A* const own = taken + walk.graph.base * walk.room;
    const SegmentalGrad self = *this;
    team.each(0, d_weights ? walk.arcs() : 0, [=](int64_t p) {
      A sum = 0;
      for (int64_t i = 0; i < walk.most(); ++i) sum += own[p * walk.room + i];
      self.d_weights(edge[p]) = T(A(self.d_out(b)) * sum);
    });
  }

  // How much of all paths take an arc in frame t, by the length of its segment: `first` times what
  // a segment, its length, and what is behind it have. The sum of the latter over all lengths.
  KERNEL Scaled<A> share(Warp warp, const Segments<T>& walk, int64_t place, int64_t slot,
                         Scaled<A> first, Row<A> behind) const {
    const int64_t own = (walk.graph.base + place) * walk.room;
    A* const __restrict m = shares.m + own, * const __restrict all = taken + own;
    Exponent<A>* const __restrict k = shares.k + own;
    const Row<A> segment = walk.row(walk.emitted, slot, walk.room);
    const int64_t model = walk.model(walk.graph.list(kPlaceEdge)[place]) * walk.room;
    const Row<A> length{walk.lengths.m + model, walk.lengths.k + model};
    warp.each(0, walk.room, [=](int64_t i) {
      const Scaled<A> x = segment[i] * length[i] * behind[i];
      m[i] = x.m;
      k[i] = x.k;
    });
    const Scaled<A> sum =
        scaled_sum_of_many<A>(warp, walk.room, [=](int64_t i) { return Scaled<A>{m[i], k[i]}; });
    warp.each(0, walk.room, [=](int64_t i) {
      m[i] *= first.m * power_of<A>(min2<Exponent<A>>(first.k + k[i], 1));
      all[i] += m[i];
    });
    return sum;
  }
  KERNEL void step_back(Team team, const Segments<T>& walk, int64_t t, int64_t b, int64_t frames,
                        Scaled<A> all) const {
    const Graph<A> g = walk.graph;
    const int64_t step = frames - t, count = min2(step, walk.most());
    walk.emit(team, b, count, t, false);
    const Row<A> weight = g.row(kOutWeight), through = g.row(kGamma);
    const int32_t *const begin = g.list(kOutBegin), *const to = g.list(kOutTo);
    const int32_t *const slot = g.list(kOutSlot), *const place = g.list(kOutPlace);
    const int32_t* const classes = g.list(kClasses);
    const int64_t alpha = t * g.width + g.base, now = walk.place(step);
    const Scaled<A> inverse{A(1) / all.m, -all.k};
    const SegmentalGrad self = *this;
    team.each_by_warp(0, g.states(), [=](Warp warp, int64_t s) {
      const Scaled<A> arrived = self.history[alpha + s];
      for (int32_t i = begin[s]; i < begin[s + 1]; ++i) {
        const Row<A> behind = walk.since(to[i], now + 1);
        Scaled<A> first = arrived * weight[i] * inverse;
        first.k = max2(first.k, Scale<A>::none);
        const Scaled<A> sum = self.share(warp, walk, place[i], slot[i], first, behind);
        if (warp.rank() == 0) through.set(i, sum * weight[i]);
      }
      if (warp.rank() > 0) return;
      walk.reach(s, now,
                 scaled_sum<A>(begin[s], begin[s + 1], [=](int64_t i) { return through[i]; }));
    });
    team.sync();
    if (!d_scores) return;
    fill(team, t, b, 0, A(0));
    const A d = A(d_out(b)), *const share = shares.m + g.base * walk.room;
    const int32_t* const first = g.list(kSlotBegin);
    const Out<T, 4> slopes = d_scores;
    team.each_by_warp(0, g.slots(), [=](Warp warp, int64_t s) {
      A* const sum = walk.row(walk.emitted, s, walk.room).m;  // no longer needed
      if (warp.size() == 1) {
        warp.each(0, walk.room, [=](int64_t i) { sum[i] = 0; });
        for (int32_t p = first[s]; p < first[s + 1]; ++p) {
          const A* const own = share + p * walk.room;
          warp.each(0, walk.room, [=](int64_t i) { sum[i] += own[i]; });
        }
      } else {  // without waiting for what was written
        warp.each(0, count, [=](int64_t i) {
          A all = 0;
          for (int32_t p = first[s]; p < first[s + 1]; ++p) all += share[p * walk.room + i];
          sum[i] = all;
        });
      }
      warp.each(0, count, [=](int64_t i) { slopes(i, t, b, classes[s]) = T(A(0) - d * sum[i]); });
    });
    team.sync();
  }

  KERNEL void run(Team team, const Segments<T>& walk, int64_t b, int64_t frames) const {
    const Graph<A> g = walk.graph;
    const Row<A> history = this->history;
    const Scaled<A> all = walk.total(team, b, frames, [=](int64_t t) {
      const int64_t now = walk.place(t), row = t * g.width + g.base;
      team.each(0, g.states(), [=](int64_t s) { history.set(row + s, walk.since(s, now)[0]); });
    });
    const bool sick = walk.sick(team, frames) || is_beyond(all), any = !sick && all.m > 0;
    clear(team, walk, sick ? not_a_number<A>() : A(0));
    for (int64_t t = any ? frames : 0; t < walk.scores.size(1); ++t) {
      fill(team, t, b, sick ? frames - t : 0, not_a_number<A>());
    }
    if (any || sick) write_ends(team, walk, b, frames, all, sick);
    if (any) {
      const Row<A> end = g.row(kEnd);
      walk.start(team, [=](int64_t s) { return end[s]; });
      for (int64_t t = frames - 1; t >= 0; --t) step_back(team, walk, t, b, frames, all);
    }
    if (any || sick) write_weights(team, walk, b);
  }
};

}  // namespace nativeops
