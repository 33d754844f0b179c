// SPDX-License-Identifier: Apache-2.0
// Simple recurrent layers, tuned. Declared in rnn.py.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"

namespace nativeops::tuned {

template <class T>
constexpr auto rnn_layer = nativeops::rnn_layer<T, RecurrentEngine>;
template <class T>
constexpr auto rnn_layer_grad = nativeops::rnn_layer_grad<T, RecurrentEngine>;

}  // namespace nativeops::tuned
