// SPDX-License-Identifier: Apache-2.0
// The core's copies on CUDA: one array into another of the same shape, with any strides.
#pragma once
#include <cstdint>
#include <stdexcept>

#include "nativeops/devices/entry.h"

namespace nativeops {

// Elements as words of their size: read and written at once.
template <class Word>
struct CopyKernel {
  const Word* from;
  Word* to;
  int64_t total;
  int rank;
  int64_t size[NATIVEOPS_MAX_RANK], from_step[NATIVEOPS_MAX_RANK], to_step[NATIVEOPS_MAX_RANK];

  __device__ void operator()() const {
    for (int64_t i : range(total)) {
      int64_t rest = i, read = 0, written = 0;
      for (int axis = rank - 1; axis >= 0; --axis) {
        const Divided part = divide(rest, size[axis]);
        read += part.rest * from_step[axis];
        written += part.rest * to_step[axis];
        rest = part.whole;
      }
      to[written] = from[read];
    }
  }
};

template <class Word>
void copy_words(Device& dev, const NativeopsTensor& from, const NativeopsTensor& to) {
  const char* read = static_cast<const char*>(from.data) + from.byte_offset;
  char* written = static_cast<char*>(to.data) + to.byte_offset;
  CopyKernel<Word> kernel{reinterpret_cast<const Word*>(read),
                          reinterpret_cast<Word*>(written),
                          1,
                          from.ndim,
                          {},
                          {},
                          {}};
  for (int axis = 0; axis < from.ndim; ++axis) {
    kernel.total *= kernel.size[axis] = from.shape[axis];
    kernel.from_step[axis] = from.strides[axis];
    kernel.to_step[axis] = to.strides[axis];
  }
  launch(dev, grid_for(kernel.total), kBlockThreads, kernel);
}

// outputs[0] = inputs[0]
inline int32_t copy_array(const NativeopsCall* call) {
  return guard(call, [&](Device& dev) {
    const NativeopsTensor &from = call->inputs[0], &to = call->outputs[0];
    switch (from.dtype.bits) {
      case 8:
        return copy_words<uint8_t>(dev, from, to);
      case 16:
        return copy_words<uint16_t>(dev, from, to);
      case 32:
        return copy_words<uint32_t>(dev, from, to);
      case 64:
        return copy_words<uint64_t>(dev, from, to);
      default:
        throw std::runtime_error("CUDA copies no elements of this size");
    }
  });
}

}  // namespace nativeops
