// SPDX-License-Identifier: Apache-2.0
// What a generated C entry uses: the arguments of a call as views, and its errors as a status.
#pragma once
#include <cstdio>  // for kernels that print, as nvcc lets them
#include <exception>
#include <new>
#include <type_traits>
#include <utility>

#include "nativeops/devices/abi.h"
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/registered.h"
#include "nativeops/devices/text.h"

namespace nativeops {

template <class T, int N>
View<T, N> view_of(const NativeopsTensor& tensor) {
  View<T, N> view;
  view.data = tensor.data == nullptr
                  ? nullptr
                  : reinterpret_cast<T*>(static_cast<char*>(tensor.data) +
                                         static_cast<int64_t>(tensor.byte_offset));
  for (int axis = 0; axis < N; ++axis) {
    view.size_[axis] = tensor.shape[axis];
    view.stride_[axis] = tensor.strides[axis];
  }
  return view;
}

template <class T, int N>
In<T, N> input(const NativeopsCall* call, int i) {
  return view_of<const T, N>(call->inputs[i]);
}

template <class T, int N>
Out<T, N> output(const NativeopsCall* call, int i) {
  return view_of<T, N>(call->outputs[i]);
}

// Stands for an attribute where a kernel's parameters are checked. It becomes a type of its own
// kind that holds all integers; a number would become any other without a word.
template <class T>
struct Attribute {
  template <class U, std::enable_if_t<std::is_same_v<U, bool> == std::is_same_v<T, bool> &&
                                          std::is_integral_v<U> == std::is_integral_v<T> &&
                                          std::is_signed_v<U> == std::is_signed_v<T> &&
                                          (sizeof(U) >= sizeof(T) || std::is_floating_point_v<U>),
                                      int> = 0>
  operator U() const;
};

// The device of a call, current for as long as it runs.
#if defined(__CUDACC__)
struct CallDevice {
  CurrentDevice current;
  Device device;
  explicit CallDevice(const NativeopsCall* call)
      : current(call->device_id),
        device{static_cast<cudaStream_t>(call->stream), call->device_id, call} {}
};
#else
struct CallDevice {
  Device device;
  explicit CallDevice(const NativeopsCall* call) : device{call->services, call} {}
};
#endif

// Runs the kernel and turns what it throws into the status of the call.
template <class F>
int32_t guard(const NativeopsCall* call, F&& kernel) {
  try {
    CallDevice on(call);
    kernel(on.device);
    return kNativeopsOk;
  } catch (const std::bad_alloc&) {
    return kNativeopsNoMemory;
  } catch (const std::exception& error) {
    copy_text(error.what(), call->message, call->message_size);
  } catch (...) {
    copy_text("the kernel failed", call->message, call->message_size);
  }
  return kNativeopsFailed;
}

}  // namespace nativeops
