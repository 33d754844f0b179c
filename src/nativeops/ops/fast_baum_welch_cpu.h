// SPDX-License-Identifier: Apache-2.0
// Posteriors of classes, summed over all paths of automata, with vectors. Declared in
// fast_baum_welch.py.
#pragma once
#include "nativeops/devices/cpu/band_passes.h"
#include "nativeops/devices/cpu/both_ends.h"
#include "nativeops/ops/fast_baum_welch.h"

namespace nativeops::tuned {

template <class T>
constexpr auto fast_baum_welch = nativeops::fast_baum_welch<T, BothEnds<BandPasses<T>>>;
template <class T>
constexpr auto fast_baum_welch_packed =
    nativeops::fast_baum_welch_packed<T, BothEnds<BandPasses<T>>>;

}  // namespace nativeops::tuned
