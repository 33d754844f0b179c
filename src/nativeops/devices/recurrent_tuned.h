// SPDX-License-Identifier: Apache-2.0
// The recurrent layers as tuned for the device that kernel.h chose, on the CPU with tiles where
// NATIVEOPS_LEVEL >= 3.
#pragma once
#if defined(__CUDACC__) || defined(NATIVEOPS_CPU_THREADS)
#include "nativeops/devices/blocks/recurrent_grad.h"
#else
#include "nativeops/devices/cpu/recurrent_grad.h"
#endif

namespace nativeops::tuned {

// As nativeops::RecurrentEngine.
struct RecurrentEngine {
  template <class Cell, class T>
  static void layer(Device& dev, const Layer<T>& layer, const States<T>& to) {
    tuned::recurrent_layer<Cell>(dev, layer, to);
  }
  template <class Cell, class T>
  static void layer_grad(Device& dev, const Layer<T>& layer, const Arrived<T>& from,
                         const LayerGrads<T>& to) {
    tuned::recurrent_layer_grad<Cell>(dev, layer, from, to);
  }
};

}  // namespace nativeops::tuned
