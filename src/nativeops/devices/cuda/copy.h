// SPDX-License-Identifier: Apache-2.0
// The core's copies on CUDA: one array into another of the same shape, with any strides.
#pragma once
#include <cstdint>

#include "nativeops/devices/entry.h"

namespace nativeops {

struct CopyKernel {
  const char* from;
  char* to;
  int64_t total;
  int rank, item;  // bytes of an element
  int64_t size[NATIVEOPS_MAX_RANK], from_step[NATIVEOPS_MAX_RANK], to_step[NATIVEOPS_MAX_RANK];

  __device__ void operator()() const {
    for (int64_t i : range(total)) {
      int64_t rest = i, read = 0, written = 0;
      for (int axis = rank - 1; axis >= 0; --axis) {
        read += rest % size[axis] * from_step[axis];
        written += rest % size[axis] * to_step[axis];
        rest /= size[axis];
      }
      for (int byte = 0; byte < item; ++byte) to[written * item + byte] = from[read * item + byte];
    }
  }
};

// outputs[0] = inputs[0]
inline int32_t copy_array(const NativeopsCall* call) {
  return guard(call, [&](Device& dev) {
    const NativeopsTensor &from = call->inputs[0], &to = call->outputs[0];
    CopyKernel kernel{static_cast<const char*>(from.data) + from.byte_offset,
                      static_cast<char*>(to.data) + to.byte_offset,
                      1,
                      from.ndim,
                      from.dtype.bits / 8,
                      {},
                      {},
                      {}};
    for (int axis = 0; axis < from.ndim; ++axis) {
      kernel.total *= kernel.size[axis] = from.shape[axis];
      kernel.from_step[axis] = from.strides[axis];
      kernel.to_step[axis] = to.strides[axis];
    }
    launch(dev, grid_for(kernel.total), kBlockThreads, kernel);
  });
}

}  // namespace nativeops
