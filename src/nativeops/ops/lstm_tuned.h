// SPDX-License-Identifier: Apache-2.0
// LSTM layer, tuned. Declared in lstm.py.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"

namespace nativeops::tuned {

template <class T>
constexpr auto lstm_layer = nativeops::lstm_layer<T, RecurrentEngine>;
template <class T>
constexpr auto lstm_layer_grad = nativeops::lstm_layer_grad<T, RecurrentEngine>;

}  // namespace nativeops::tuned
