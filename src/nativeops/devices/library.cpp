// SPDX-License-Identifier: Apache-2.0
// Compiled into each library of kernels: the symbol that the core looks up.
#include "nativeops/devices/registered.h"

// A user's library leaves out what measures the machine: it is not asked, and slow to compile.
#if NATIVEOPS_LEVEL > 0 && !defined(NATIVEOPS_USER_OP)
#include "nativeops/devices/cpu/limits.h"

static double vector_rate(const NativeopsServices* services, int32_t mix) {
  nativeops::Device dev{services, nullptr};
  return nativeops::tuned::vector_operations_per_second(dev, mix);
}
static constexpr int32_t kLanes = nativeops::simd::kLanes<float>;
#else
static constexpr double (*vector_rate)(const NativeopsServices*, int32_t) = nullptr;
static constexpr int32_t kLanes = 0;
#endif

// What the package lends to kernels, a user's own among them.
#if !defined(__CUDACC__) && !defined(NATIVEOPS_CPU_THREADS) && !defined(NATIVEOPS_USER_OP)
#include "nativeops/devices/cpu/matrix_product.h"
static constexpr auto* multiply = nativeops::matrix_product::multiply_any;
#else
static constexpr decltype(NativeopsLibrary::multiply) multiply = nullptr;
#endif

// Where nvcc compiles this.
#if defined(__CUDACC__)
#include "nativeops/devices/cuda/copy.h"
static constexpr NativeopsKernel copy = nativeops::copy_array;
#else
static constexpr NativeopsKernel copy = nullptr;
#endif

extern "C" __attribute__((visibility("default"))) const NativeopsLibrary* nativeops_library() {
  static constexpr const char* kLevels[] = {"portable", "avx2", "avx512", "amx"};
  const auto& entries = nativeops::registered_entries;
  static NativeopsLibrary library;
  library = {NATIVEOPS_ABI,
             NATIVEOPS_DEVICE_NAME,
             kLevels[NATIVEOPS_LEVEL],
             static_cast<int32_t>(entries.count),
             entries.data,
             kLanes,
             vector_rate,
             copy,
             multiply};
  return &library;
}
