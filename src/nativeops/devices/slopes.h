// SPDX-License-Identifier: Apache-2.0
// Derivatives of the activations of recurrent cells, from their values.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

template <class T>
HOST_DEVICE T sigmoid_slope(T value) {
  return value * (1 - value);
}
template <class T>
HOST_DEVICE T tanh_slope(T value) {
  return 1 - value * value;
}

template <class T>
HOST_DEVICE T relu_slope(T value) {
  return value > 0 ? T(1) : T(0);
}

}  // namespace nativeops
