// SPDX-License-Identifier: Apache-2.0
// CUDA: a stream, and memory that lives on it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

namespace nativeops {

// Turns what the runtime reports into an exception, and clears it.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  if (status == cudaErrorMemoryAllocation) throw std::bad_alloc();
  throw std::runtime_error(std::string("CUDA could not ") + what + ": " +
                           cudaGetErrorString(status));
}

// `count` numbers of device memory, uninitialised, given back to the stream at the end of the
// scope.
template <class T>
class Workspace {
 public:
  Workspace(cudaStream_t stream, int64_t count) : stream_(stream) {
    if (count <= 0) return;
    if (static_cast<uint64_t>(count) > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    void* memory = nullptr;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    check_cuda(cudaMallocAsync(&memory, bytes, stream), "allocate a workspace");
    data_ = static_cast<T*>(memory);
  }
  ~Workspace() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  Workspace(Workspace&& other) noexcept : stream_(other.stream_), data_(other.data_) {
    other.data_ = nullptr;
  }
  Workspace& operator=(Workspace&&) = delete;

  T* data() const { return data_; }

 private:
  cudaStream_t stream_;
  T* data_ = nullptr;
};

struct Device {
  cudaStream_t stream;
  int device_id;

  template <class T>
  Workspace<T> workspace(int64_t count) {
    return Workspace<T>(stream, count);
  }
};

// Makes a device the current one of this thread for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device_id) {
    check_cuda(cudaGetDevice(&before_), "tell the current device");
    if (before_ != device_id) check_cuda(cudaSetDevice(device_id), "select the device");
    changed_ = before_ != device_id;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace nativeops
