// SPDX-License-Identifier: Apache-2.0
// Compiled into each library of kernels: the symbol that the core looks up.
#include "nativeops/devices/registered.h"

// A user's library leaves out what measures the machine: it is not asked, and slow to compile.
#if NATIVEOPS_LEVEL > 0 && !defined(NATIVEOPS_USER_OP)
#define NATIVEOPS_MEASURES
#include "nativeops/devices/cpu/limits.h"
#endif
// What the package lends to kernels, a user's own among them.
#if !defined(__CUDACC__) && !defined(NATIVEOPS_CPU_THREADS) && !defined(NATIVEOPS_USER_OP)
#define NATIVEOPS_LENDS
#include "nativeops/devices/cpu/matrix_product.h"
#endif
// Where nvcc compiles this.
#if defined(__CUDACC__)
#include "nativeops/devices/cuda/copy.h"
#endif

// Named in full below: a user's header, which stands before this, may have functions of such names
// outside of any namespace, or say `using namespace std`.
namespace nativeops_library_parts {

#if defined(NATIVEOPS_MEASURES)
static double vector_rate(const NativeopsServices* services, int32_t mix) {
  nativeops::Device dev{services, nullptr};
  return nativeops::tuned::vector_operations_per_second(dev, mix);
}
static constexpr int32_t kLanes = nativeops::simd::kLanes<float>;
#else
static constexpr double (*vector_rate)(const NativeopsServices*, int32_t) = nullptr;
static constexpr int32_t kLanes = 0;
#endif

#if defined(NATIVEOPS_LENDS)
static constexpr auto* multiply = nativeops::matrix_product::multiply_any;
#else
static constexpr decltype(NativeopsLibrary::multiply) multiply = nullptr;
#endif

#if defined(__CUDACC__)
static constexpr NativeopsKernel copy = nativeops::copy_array;
#else
static constexpr NativeopsKernel copy = nullptr;
#endif

}  // namespace nativeops_library_parts

extern "C" __attribute__((visibility("default"))) const NativeopsLibrary* nativeops_library() {
  static constexpr const char* kLevels[] = {"portable", "avx2", "avx512", "amx"};
  const auto& entries = nativeops::registered_entries;
  static NativeopsLibrary library;
  library = {NATIVEOPS_ABI,
             NATIVEOPS_DEVICE_NAME,
             kLevels[NATIVEOPS_LEVEL],
             static_cast<int32_t>(entries.count),
             entries.data,
             nativeops_library_parts::kLanes,
             nativeops_library_parts::vector_rate,
             nativeops_library_parts::copy,
             nativeops_library_parts::multiply};
  return &library;
}
