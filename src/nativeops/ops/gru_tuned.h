// SPDX-License-Identifier: Apache-2.0
// GRU layer, tuned. Declared in gru.py.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"

namespace nativeops::tuned {

template <class T>
constexpr auto gru_layer = nativeops::gru_layer<T, RecurrentEngine>;
template <class T>
constexpr auto gru_layer_grad = nativeops::gru_layer_grad<T, RecurrentEngine>;

}  // namespace nativeops::tuned
