// SPDX-License-Identifier: Apache-2.0
// RETURNN's LSTM layers, tuned. Declared in native_lstm.py.
#pragma once
#include "nativeops/devices/recurrent_tuned.h"
#include "nativeops/ops/native_lstm.h"

namespace nativeops::tuned {

template <class T>
constexpr auto native_lstm2 = nativeops::native_lstm2<T, RecurrentEngine>;
template <class T>
constexpr auto native_lstm2_grad = nativeops::native_lstm2_grad<T, RecurrentEngine>;
template <class T>
constexpr auto lstm_low_mem = nativeops::lstm_low_mem<T, RecurrentEngine>;
template <class T>
constexpr auto lstm_low_mem_grad = nativeops::lstm_low_mem_grad<T, RecurrentEngine>;

}  // namespace nativeops::tuned
