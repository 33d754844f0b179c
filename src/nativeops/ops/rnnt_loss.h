// SPDX-License-Identifier: Apache-2.0
// Transducer loss: forward and gradient. Declared in rnnt_loss.py.
#pragma once
#include "nativeops/devices/transducer_paths.h"

namespace nativeops {

// costs = -α[T, U]
template <class T, class I>
void rnnt_costs(Device& dev, In<T, 4> logits, In<I, 2> targets, In<int32_t, 1> logit_lengths,
                In<int32_t, 1> target_lengths, Out<T, 1> costs, Out<float, 4> lattice,
                int64_t blank, double, bool fused_log_softmax, int64_t topology) {
  using namespace transducer;
  const Joint<T, I> joint{logits, targets, logit_lengths, target_lengths, blank, topology != 0};
  check(joint);
  const Cells<T> cells(dev, joint, lattice);
  statistics(dev, joint, cells.view, fused_log_softmax);
  cells.round_to(dev, lattice);
  forward(dev, joint, cells.view, costs);
}

// d_logits[t, u, k] = d_costs · (y[t, u, k]·(b + l) - [k = blank]·b - [k = targets[u]]·l)
template <class T, class I>
void rnnt_costs_grad(Device& dev, In<T, 4> logits, In<I, 2> targets, In<int32_t, 1> logit_lengths,
                     In<int32_t, 1> target_lengths, In<T, 1> d_costs, In<float, 4> lattice,
                     Out<T, 4> d_logits, int64_t blank, double clamp, bool fused_log_softmax,
                     int64_t topology) {
  using namespace transducer;
  const Joint<T, I> joint{logits, targets, logit_lengths, target_lengths, blank, topology != 0};
  check(joint);
  const Cells<T> cells(dev, joint, lattice);
  if (!cells.given) statistics(dev, joint, cells.view, fused_log_softmax);
  const Leaving<T> leaving(dev, joint);
  backward(dev, joint, cells.view, leaving.view);
  gradient(dev, joint, cells.view, leaving.view,
           Flow<T>{d_costs, d_logits, clamp, fused_log_softmax});
}

}  // namespace nativeops
