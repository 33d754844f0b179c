// SPDX-License-Identifier: Apache-2.0
// Transducer loss: forward and gradient. Declared in rnnt_loss.py.
#pragma once
#include "nativeops/devices/transducer_paths.h"

namespace nativeops {

// costs = -α[T, U] with α[t, u] = log(e^(α[t-1, u] + log y[t-1, u, blank]) +
// e^(α[t, u-1] + log y[t, u-1, targets[u-1]])), whose last step to (T, U) is the blank that ends;
// y = softmax(logits), or e^logits where they are not to be normalised
template <class T, class I>
void rnnt_costs(Device& dev, In<T, 4> logits, In<I, 2> targets, In<int32_t, 1> logit_lengths,
                In<int32_t, 1> target_lengths, Out<T, 1> costs, Out<Accum<T>, 4> lattice,
                int64_t blank, double, bool fused_log_softmax, int64_t topology) {
  using namespace transducer;
  const Joint<T, I> joint{logits, targets, logit_lengths, target_lengths, blank, topology != 0};
  check(joint);
  const Planes<T> own(dev, joint, lattice ? 0 : kPlanes);
  const Out<Accum<T>, 4> cells = lattice ? lattice : own.view;
  statistics(dev, joint, cells, fused_log_softmax);
  forward(dev, joint, cells, costs);
}

// d_logits[t, u, k] = d_costs · (y[t, u, k]·(b + l) - [k = blank]·b - [k = targets[u]]·l), what is
// in brackets clamped, without its first term where logits are not normalised; b, l: the
// probabilities to leave (t, u) by the blank, by the label
template <class T, class I>
void rnnt_costs_grad(Device& dev, In<T, 4> logits, In<I, 2> targets, In<int32_t, 1> logit_lengths,
                     In<int32_t, 1> target_lengths, In<T, 1> d_costs, In<Accum<T>, 4> lattice,
                     Out<T, 4> d_logits, int64_t blank, double clamp, bool fused_log_softmax,
                     int64_t topology) {
  using namespace transducer;
  const Joint<T, I> joint{logits, targets, logit_lengths, target_lengths, blank, topology != 0};
  check(joint);
  const Planes<T> own(dev, joint, lattice ? 0 : kPlanes), leaving(dev, joint, 2);
  if (!lattice) statistics(dev, joint, own.view, fused_log_softmax);
  const In<Accum<T>, 4> cells = lattice ? lattice : In<Accum<T>, 4>(own.view);
  backward(dev, joint, cells, leaving.view);
  gradient(dev, joint, cells, leaving.view, Flow<T>{d_costs, d_logits, clamp, fused_log_softmax});
}

}  // namespace nativeops
