// SPDX-License-Identifier: Apache-2.0
// The full-sum loss over automata, and its gradient, with vectors. Declared in fsa_loss.py.
#pragma once
#include "nativeops/devices/cpu/band_passes.h"
#include "nativeops/ops/fsa_loss.h"

namespace nativeops::tuned {

template <class T>
void fsa_loss(Device& dev, In<T, 3> logits, In<int32_t, 2> edges, In<T, 1> weights,
              In<int32_t, 2> start_end_states, In<int32_t, 1> lengths, In<int32_t, 2> end_states,
              In<T, 1> end_weights, Out<T, 1> out, bool normalized, bool zero_infinity) {
  nativeops::fsa_loss<T, BandPasses<T>>(dev, logits, edges, weights, start_end_states, lengths,
                                        end_states, end_weights, out, normalized, zero_infinity);
}

template <class T>
void fsa_loss_grad(Device& dev, In<T, 3> logits, In<int32_t, 2> edges, In<T, 1> weights,
                   In<int32_t, 2> start_end_states, In<T, 1> d_out, In<int32_t, 1> lengths,
                   In<int32_t, 2> end_states, In<T, 1> end_weights, Out<T, 3> d_logits,
                   Out<T, 1> d_weights, Out<T, 1> d_end_weights, bool normalized) {
  // VectorPasses also without d_weights, since only they tell the paths through each arc, and the
  // bits of d_logits must not depend on what else is wanted.
  nativeops::fsa_loss_grad<T, VectorPasses<T>>(dev, logits, edges, weights, start_end_states, d_out,
                                               lengths, end_states, end_weights, d_logits,
                                               d_weights, d_end_weights, normalized);
}

}  // namespace nativeops::tuned
