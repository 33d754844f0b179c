// SPDX-License-Identifier: Apache-2.0
// The table of a library of kernels: each generated source adds its entries when it is loaded.
#pragma once
#include <initializer_list>
#include <vector>

#include "nativeops/devices/abi.h"

namespace nativeops {

inline std::vector<NativeopsEntry>& registered_entries() {
  static std::vector<NativeopsEntry> entries;
  return entries;
}

struct Registered {
  Registered(std::initializer_list<NativeopsEntry> list) {
    auto& all = registered_entries();
    all.insert(all.end(), list.begin(), list.end());
  }
};

}  // namespace nativeops
