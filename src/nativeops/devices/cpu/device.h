// SPDX-License-Identifier: Apache-2.0
// The CPU: threads and memory, both lent by the core.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>

#include "nativeops/devices/abi.h"

namespace nativeops {
namespace tuned {
class Progress;
}

// `count` numbers of 64-byte aligned memory, uninitialised, given back at the end of the scope.
template <class T>
class Workspace {
 public:
  Workspace(const NativeopsServices* services, const NativeopsCall* call, int64_t count)
      : services_(services), call_(call) {
    if (count <= 0) return;
    if (static_cast<uint64_t>(count) > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    memory_ =
        kWatched ? NativeopsMemory{alone(bytes), nullptr, bytes} : services->allocate(call, bytes);
    if (memory_.data == nullptr) throw std::bad_alloc();
  }
  ~Workspace() {
    if (memory_.data == nullptr) return;
    if (kWatched) {
      std::free(memory_.data);
    } else {
      services_->release(call_, memory_);
    }
  }
  Workspace(Workspace&& other) noexcept
      : services_(other.services_), call_(other.call_), memory_(other.memory_) {
    other.memory_.data = nullptr;
  }
  Workspace& operator=(Workspace&&) = delete;

  T* data() const { return static_cast<T*>(memory_.data); }
  T& operator[](int64_t i) const { return data()[i]; }

 private:
  // AddressSanitizer knows where memory ends that it lent itself.
#if defined(__SANITIZE_ADDRESS__) && defined(NATIVEOPS_USER_OP)
  static constexpr bool kWatched = true;
#else
  static constexpr bool kWatched = false;
#endif
  static void* alone(size_t bytes) {
    void* memory = nullptr;
    return posix_memalign(&memory, 64, bytes) == 0 ? memory : nullptr;
  }

  const NativeopsServices* services_;
  const NativeopsCall* call_;
  NativeopsMemory memory_{};
};

struct Device {
  const NativeopsServices* services;
  const NativeopsCall* call;
  // Of a layer that is computed at the same time as the one whose results it reads, and of that:
  // how far the other is, and how far this one. Kernels that know nothing of it are never told.
  tuned::Progress *before = nullptr, *after = nullptr;

  explicit Device(const NativeopsServices* services, const NativeopsCall* call = nullptr)
      : services(services), call(call), threads_(services->num_threads()) {}

  // body(i) for every i in [0, n), spread over the pool; returns when all are done. An exception
  // of a body comes out here; which of several is not defined.
  template <class F>
  void parallel(int64_t n, F&& body) {
    if (n <= 0) return;
    struct Context {
      F& body;
      std::atomic<bool> failed{false};
      std::exception_ptr error = nullptr;
    } context{body};
    // Not inlined below: compiling each body twice would double the time of building an op.
    auto run = [](void* pointer, int64_t i) __attribute__((noinline)) {
      Context& c = *static_cast<Context*>(pointer);
      try {
        c.body(i);
      } catch (...) {  // no exception may cross the pool, which is C
        if (!c.failed.exchange(true)) c.error = std::current_exception();
      }
    };
    if (n == 1)
      run(&context, 0);
    else
      services->parallel(n, run, &context);
    if (context.error) std::rethrow_exception(context.error);
  }

  // The same device with this thread alone: for one of several pieces of work at a time.
  Device alone() const {
    Device one = *this;
    one.threads_ = 1;
    return one;
  }

  // The same for as long as the call runs: memory is sized by it, and another thread may set it.
  int num_threads() const { return threads_; }
  bool crowded() const { return services->crowded() != 0; }

  template <class T>
  Workspace<T> workspace(int64_t count) {
    return Workspace<T>(services, call, count);
  }

 private:
  int threads_;
};

}  // namespace nativeops
