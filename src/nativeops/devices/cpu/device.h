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
#include "nativeops/devices/cpu/crowding.h"

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
  // of a body comes out here; which of several is not defined. Where others take the CPUs, this
  // thread begins by itself: what is done in less time than another may be stopped for, need not
  // wait for it.
  template <class F>
  void parallel(int64_t n, F&& body) {
    run(n, body, n > 1 && crowded());
  }

  // The same at once: where the work is known to be worth it, or one body may do all of it.
  template <class F>
  void spread(int64_t n, F&& body) {
    run(n, body, false);
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
  static constexpr int64_t kStall = 3000000;  // nanoseconds; a turn of another process takes 4 ms

  template <class F>
  void run(int64_t n, F& body, bool begins_alone) {
    if (n <= 0) return;
    struct Context {
      F& body;
      int64_t first = 0;  // of those that are left
      std::atomic<bool> failed{false};
      std::exception_ptr error = nullptr;
    } context{body};
    // Not inlined below: compiling each body twice would double the time of building an op.
    auto run = [](void* pointer, int64_t i) __attribute__((noinline)) {
      Context& c = *static_cast<Context*>(pointer);
      try {
        c.body(c.first + i);
      } catch (...) {  // no exception may cross the pool, which is C
        if (!c.failed.exchange(true)) c.error = std::current_exception();
      }
    };
    if (begins_alone) {
      const int64_t end = cpu::time_of(CLOCK_MONOTONIC) + kStall;
      do {
        run(&context, 0);
      } while (++context.first < n && cpu::time_of(CLOCK_MONOTONIC) < end);
    }
    const int64_t left = n - context.first;
    if (left == 1) {
      run(&context, 0);
    } else if (left > 1) {
      services->parallel(left, run, &context);
    }
    if (context.error) std::rethrow_exception(context.error);
  }

  int threads_;
};

}  // namespace nativeops
