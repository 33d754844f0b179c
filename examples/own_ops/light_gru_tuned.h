// SPDX-License-Identifier: Apache-2.0
// The light GRU in the engine that is tuned for the CPU and for CUDA.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"

namespace nativeops::tuned {

template <class T>
constexpr auto light_gru = nativeops::light_gru<T, RecurrentEngine>;
template <class T>
constexpr auto light_gru_grad = nativeops::light_gru_grad<T, RecurrentEngine>;

}  // namespace nativeops::tuned
