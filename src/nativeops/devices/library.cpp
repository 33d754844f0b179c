// SPDX-License-Identifier: Apache-2.0
// Compiled into each library of kernels: the symbol that the core looks up.
#include "nativeops/devices/registered.h"

extern "C" __attribute__((visibility("default"))) const NativeopsLibrary* nativeops_library() {
  static constexpr const char* kLevels[] = {"portable", "avx2", "avx512", "amx"};
  const auto& entries = nativeops::registered_entries();
  static NativeopsLibrary library;
  library = {NATIVEOPS_ABI, NATIVEOPS_DEVICE_NAME, kLevels[NATIVEOPS_LEVEL],
             static_cast<int32_t>(entries.size()), entries.data()};
  return &library;
}
