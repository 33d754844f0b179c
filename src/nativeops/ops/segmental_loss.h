// SPDX-License-Identifier: Apache-2.0
// The full-sum loss of segmental models, and its gradient. Declared in segmental_loss.py.
#pragma once
#include "nativeops/devices/segments_grad.h"

namespace nativeops {

// loss[b] = -log Σ over all paths, and all lengths of their segments that make up the frames, of
//           Π e^(score of the segment - weight of the edge - cost of the length)
template <class T>
void segmental_loss(Device& dev, In<T, 4> scores, In<int32_t, 2> edges, In<T, 1> weights,
                    In<int32_t, 2> start_end_states, In<int32_t, 1> lengths, In<T, 2> length_costs,
                    In<int32_t, 1> length_models, In<int32_t, 2> end_states, In<T, 1> end_weights,
                    Out<T, 1> out, bool zero_infinity) {
  using A = Accum<T>;
  const int64_t steps = scores.size(1), batch = scores.size(2);
  const Automata<T> automata{edges,      weights,     start_end_states,
                             end_states, end_weights, scores.size(3)};
  check_segments(automata, scores, lengths, length_costs, length_models);
  if (batch == 0) return;
  const SegmentsMemory<T> memory(dev, automata, scores, length_costs, length_models);
  const Segments<T> walk = memory.walk();
  const int64_t* const begin = memory.index.begin();
  for_each_large_item(dev, batch, [=] KERNEL(Team team, int64_t b) {
    const Segments<T> own = walk.of(begin, b);
    const int64_t frames = length_of(lengths, b, steps);
    const Scaled<A> sum = own.total(team, b, frames, [](int64_t) {});
    const bool sick = own.sick(team, frames) || is_beyond(sum), none = !sick && sum.m == 0;
    if (team.rank() > 0) return;
    const A cost = sick ? not_a_number<A>() : static_cast<A>(long_cost_of(sum));
    out(b) = T(none && zero_infinity ? A(0) : cost);
  });
}

// d_scores = -d_out[b] · P(the segment | all frames); d_weights, d_length_costs and d_end_weights
// are the sums of d_out[b] · P over all segments that have the edge, the length or the end
template <class T>
void segmental_loss_grad(Device& dev, In<T, 4> scores, In<int32_t, 2> edges, In<T, 1> weights,
                         In<int32_t, 2> start_end_states, In<T, 1> d_out, In<int32_t, 1> lengths,
                         In<T, 2> length_costs, In<int32_t, 1> length_models,
                         In<int32_t, 2> end_states, In<T, 1> end_weights, Out<T, 4> d_scores,
                         Out<T, 1> d_weights, Out<T, 2> d_length_costs, Out<T, 1> d_end_weights) {
  using A = Accum<T>;
  const int64_t steps = scores.size(1), batch = scores.size(2);
  const Automata<T> automata{edges,      weights,     start_end_states,
                             end_states, end_weights, scores.size(3)};
  check_segments(automata, scores, lengths, length_costs, length_models);
  if (d_weights) for_each(dev, d_weights, [=] KERNEL(int64_t e) { d_weights(e) = T(A(0)); });
  if (d_end_weights) {
    for_each(dev, d_end_weights, [=] KERNEL(int64_t i) { d_end_weights(i) = T(A(0)); });
  }
  if (d_length_costs) {
    for_each(dev, d_length_costs,
             [=] KERNEL(int64_t k, int64_t i) { d_length_costs(k, i) = T(A(0)); });
  }
  if (batch == 0) return;
  const SegmentsMemory<T> memory(dev, automata, scores, length_costs, length_models);
  const Rows<A> history(dev, steps + 1, memory.index.width);
  const Rows<A> shares(dev, memory.room, memory.index.width);
  const Workspace<A> taken = dev.template workspace<A>(memory.room * memory.index.width);
  const SegmentalGrad<T> grad{d_scores, d_weights,       d_end_weights,  d_out,
                              automata, history.first(), shares.first(), taken.data()};
  const Segments<T> walk = memory.walk();
  const int64_t* const begin = memory.index.begin();
  for_each_large_item(dev, batch, [=] KERNEL(Team team, int64_t b) {
    grad.run(team, walk.of(begin, b), b, length_of(lengths, b, steps));
  });
  if (!d_length_costs) return;
  // A length is one thread's, which adds all arcs in their order: no sum depends on the device.
  const Workspace<A> sums = dev.template workspace<A>(d_length_costs.count());
  const View<A, 2> to{sums.data(), {walk.models, walk.most()}, {walk.most(), 1}};
  for_each(
      dev, View<A, 1>{sums.data(), {walk.most()}, {1}},
      [=] KERNEL(int64_t i) {
        for (int64_t k = 0; k < walk.models; ++k) to(k, i) = 0;
        for (int64_t b = 0; b < batch; ++b) {
          const Segments<T> own = walk.of(begin, b);
          const int32_t* const edge = own.graph.list(kPlaceEdge);
          for (int64_t p = 0; p < own.arcs(); ++p) {
            const A taken = grad.taken[(own.graph.base + p) * own.room + i];
            const int64_t k = own.model(edge[p]);
            if (taken != 0 && k < own.models) to(k, i) += taken * A(d_out(b));
          }
        }
        for (int64_t k = 0; k < walk.models; ++k) d_length_costs(k, i) = T(to(k, i));
      },
      walk.models + automata.size());
}

}  // namespace nativeops
