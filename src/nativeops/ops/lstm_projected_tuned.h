// SPDX-License-Identifier: Apache-2.0
// LSTM layer whose state is projected, tuned. Declared in lstm_projected.py.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"

namespace nativeops::tuned {

template <class T>
constexpr auto lstm_projected_layer = nativeops::lstm_projected_layer<T, RecurrentEngine>;
template <class T>
constexpr auto lstm_projected_layer_grad = nativeops::lstm_projected_layer_grad<T, RecurrentEngine>;

}  // namespace nativeops::tuned
