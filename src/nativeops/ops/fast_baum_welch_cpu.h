// SPDX-License-Identifier: Apache-2.0
// Posteriors of classes, summed over all paths of automata, with vectors. Declared in
// fast_baum_welch.py.
#pragma once
#include "nativeops/devices/cpu/band_passes.h"
#include "nativeops/devices/cpu/both_ends.h"
#include "nativeops/ops/fast_baum_welch.h"

namespace nativeops::tuned {

template <class T>
void fast_baum_welch(Device& dev, In<T, 3> am_scores, In<int32_t, 2> edges, In<T, 1> weights,
                     In<int32_t, 2> start_end_states, In<int32_t, 1> lengths,
                     In<int32_t, 2> end_states, In<T, 1> end_weights, Out<T, 3> fwdbwd,
                     Out<T, 2> obs_scores) {
  nativeops::fast_baum_welch<T, BothEnds<BandPasses<T>>>(dev, am_scores, edges, weights,
                                                         start_end_states, lengths, end_states,
                                                         end_weights, fwdbwd, obs_scores);
}

template <class T>
void fast_baum_welch_packed(Device& dev, In<T, 2> am_scores, In<int32_t, 1> seq_starts,
                            In<int32_t, 1> lengths, In<int32_t, 2> edges, In<T, 1> weights,
                            In<int32_t, 2> start_end_states, In<int32_t, 2> end_states,
                            In<T, 1> end_weights, Out<T, 2> fwdbwd, Out<T, 1> obs_scores) {
  nativeops::fast_baum_welch_packed<T, BothEnds<BandPasses<T>>>(
      dev, am_scores, seq_starts, lengths, edges, weights, start_end_states, end_states,
      end_weights, fwdbwd, obs_scores);
}

}  // namespace nativeops::tuned
