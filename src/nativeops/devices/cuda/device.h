// SPDX-License-Identifier: Apache-2.0
// CUDA: a stream, and memory for what runs on it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "nativeops/devices/abi.h"

namespace nativeops {

// Turns what the runtime reports into an exception, and clears it.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  if (status == cudaErrorMemoryAllocation) throw std::bad_alloc();
  throw std::runtime_error(std::string("CUDA could not ") + what + ": " +
                           cudaGetErrorString(status));
}

// `count` numbers of device memory, uninitialised, given back at the end of the scope: to the
// framework's allocator, else to the stream's own.
template <class T>
class Workspace {
 public:
  Workspace(const NativeopsCall* call, cudaStream_t stream, int64_t count)
      : call_(call), stream_(stream) {
    if (count <= 0) return;
    if (static_cast<uint64_t>(count) > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    lent_ = call != nullptr && call->services->allocate != nullptr;
    if (lent_)
      memory_ = call->services->allocate(call, bytes);
    else
      check_cuda(cudaMallocAsync(&memory_.data, bytes, stream), "allocate a workspace");
    if (memory_.data == nullptr) throw std::bad_alloc();  // also where a framework has a limit
  }
  ~Workspace() {
    if (memory_.data == nullptr) return;
    if (lent_)
      call_->services->release(call_, memory_);
    else
      cudaFreeAsync(memory_.data, stream_);
  }
  Workspace(Workspace&& other) noexcept
      : call_(other.call_), stream_(other.stream_), memory_(other.memory_), lent_(other.lent_) {
    other.memory_.data = nullptr;
  }
  Workspace& operator=(Workspace&&) = delete;

  T* data() const { return static_cast<T*>(memory_.data); }

 private:
  const NativeopsCall* call_;
  cudaStream_t stream_;
  NativeopsMemory memory_{};
  bool lent_ = false;
};

struct Device {
  cudaStream_t stream;
  int device_id;
  const NativeopsCall* call = nullptr;

  template <class T>
  Workspace<T> workspace(int64_t count) {
    return Workspace<T>(call, stream, count);
  }
};

// Whether a GPU has a context in this process, which takes some hundred megabytes of it; true where
// nobody can tell.
inline bool has_context([[maybe_unused]] int device_id) {
#if CUDART_VERSION >= 12050
  using State = int (*)(int, unsigned*, int*);
  static const State state = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 12000, cudaEnableDefault,
                                     &result);
    return reinterpret_cast<State>(found);
  }();
  unsigned flags = 0;
  int active = 1;
  return state == nullptr || state(device_id, &flags, &active) != 0 || active != 0;
#else
  return true;
#endif
}

// Makes a device the current one of this thread for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device_id) {
    check_cuda(cudaGetDevice(&before_), "tell the current device");
    if (before_ != device_id) check_cuda(cudaSetDevice(device_id), "select the device");
    changed_ = before_ != device_id;
  }
  // A thread that never chose a GPU stays at this one: to select the first, which nobody uses,
  // would make a context there.
  ~CurrentDevice() {
    if (changed_ && has_context(before_)) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace nativeops
