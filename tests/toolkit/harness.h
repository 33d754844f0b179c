// SPDX-License-Identifier: Apache-2.0
// Cases by name, and the services that a kernel needs, for the tests of the toolkit.
#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nativeops/devices/entry.h"
#include "nativeops/devices/kernel.h"

namespace harness {

using nativeops::View;

inline std::vector<std::pair<std::string, std::function<void()>>>& cases() {
  static std::vector<std::pair<std::string, std::function<void()>>> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}

#define CASE(name)                                                                     \
  static void name();                                                                  \
  static const bool name##_added = (harness::cases().emplace_back(#name, name), true); \
  static void name()
#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition) && ++harness::failures() <= 10)                                 \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
  } while (false)

inline void serial(int64_t n, void (*body)(void*, int64_t), void* context) {
  for (int64_t i = 0; i < n; ++i) body(context, i);
}
inline void threaded(int64_t n, void (*body)(void*, int64_t), void* context) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int64_t i; (i = next.fetch_add(1)) < n;) body(context, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
inline std::atomic<int>& live_allocations() {
  static std::atomic<int> count{0};
  return count;
}
inline std::atomic<size_t>& largest_allocation() {
  static std::atomic<size_t> bytes{0};
  return bytes;
}
inline NativeopsMemory allocate(const NativeopsCall*, size_t bytes) {
  if (bytes > size_t{1} << 40) return {nullptr, nullptr, bytes};
  if (bytes > largest_allocation()) largest_allocation() = bytes;
  live_allocations().fetch_add(1);
  return {std::aligned_alloc(64, (bytes + 63) / 64 * 64), nullptr, bytes};
}
inline void release(const NativeopsCall*, NativeopsMemory memory) {
  live_allocations().fetch_sub(1);
  std::free(memory.data);
}
inline int32_t never() { return 0; }
// What multiplies matrices, where a program includes products.h.
inline decltype(NativeopsServices::multiply)& multiplier() {
  static decltype(NativeopsServices::multiply) function = nullptr;
  return function;
}
inline int32_t multiply(const NativeopsServices* services, const NativeopsCall* call,
                        const NativeopsProduct* product) {
  return multiplier()(services, call, product);
}
inline const NativeopsServices kSerial{
    sizeof(NativeopsServices), serial, [] { return 1; }, allocate, release, never, multiply};
inline const NativeopsServices kThreaded{
    sizeof(NativeopsServices), threaded, [] { return 3; }, allocate, release, never, multiply};

// Runs a test on both kinds of services.
template <class F>
void on_each_device(F test) {
  for (const NativeopsServices* services : {&kSerial, &kThreaded}) {
    nativeops::Device dev{services};
    test(dev);
  }
}

enum class Layout { kDense, kGaps, kTransposed, kReversed };
constexpr Layout kLayouts[] = {Layout::kDense, Layout::kGaps, Layout::kTransposed,
                               Layout::kReversed};

// An array of three axes whose memory lies as the layout says, filled with multiples of 1/8 that
// every dtype holds exactly. What lies around it is checked for overruns.
template <class T>
class Array {
 public:
  Array(int64_t b, int64_t n, int64_t m, Layout layout = Layout::kDense, unsigned seed = 1)
      : view{nullptr, {b, n, m}, {n * m, m, 1}} {
    if (layout == Layout::kGaps) view = {nullptr, {b, n, m}, {n * m * 3, m * 3, 2}};
    if (layout == Layout::kTransposed) view = {nullptr, {b, n, m}, {n * m, 1, n}};
    if (layout == Layout::kReversed) view = {nullptr, {b, n, m}, {n * m, m, -1}};
    const int64_t count = b * n * m * 3;
    memory_.assign(static_cast<size_t>(count) + 2 * kMargin, T(kSentinel));
    view.data = memory_.data() + kMargin + (layout == Layout::kReversed && m > 0 ? m - 1 : 0);
    srand(seed);
    each([&](int64_t i, int64_t j, int64_t k) {
      view(i, j, k) = T(static_cast<float>(rand() % 33 - 16) / 8.0f);
    });
  }

  template <class F>
  void each(F f) const {
    for (int64_t i = 0; i < view.size(0); ++i) {
      for (int64_t j = 0; j < view.size(1); ++j) {
        for (int64_t k = 0; k < view.size(2); ++k) f(i, j, k);
      }
    }
  }

  // Only elements of the view have been written.
  bool intact() const {
    std::vector<T> copy = memory_;
    each([&](int64_t i, int64_t j, int64_t k) {
      copy[static_cast<size_t>(&view(i, j, k) - memory_.data())] = T(kSentinel);
    });
    for (T value : copy) {
      if (static_cast<float>(value) != kSentinel) return false;
    }
    return true;
  }

  View<const T, 3> in() const { return view; }
  View<T, 3> view;

 private:
  static constexpr int kMargin = 64;
  static constexpr float kSentinel = 96;
  std::vector<T> memory_;
};

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

constexpr int kNotThisCpu = 77;  // as test_toolkit.py knows it

// Whether this CPU has the instructions that the program is built for.
inline bool can_run() {
#if defined(__AVX512BW__)
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl")) return false;
#endif
#if defined(__AVX2__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
#endif
  return true;
}

inline int run(int argc, char** argv) {
  if (!can_run()) return kNotThisCpu;
  bool found = false;
  for (auto& [name, body] : cases()) {
    if (argc > 1 && name != argv[1]) continue;
    found = true;
    body();
  }
  if (!found) std::fprintf(stderr, "there is no case %s\n", argc > 1 ? argv[1] : "");
  if (live_allocations() != 0) std::fprintf(stderr, "a workspace was not given back\n");
  return found && failures() == 0 && live_allocations() == 0 ? 0 : 1;
}

}  // namespace harness

#define FOR_EACH_DTYPE(test) \
  do {                       \
    test(float{});           \
    test(double{});          \
    test(nativeops::bf16{}); \
    test(nativeops::f16{});  \
  } while (false)
