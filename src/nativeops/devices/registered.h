// SPDX-License-Identifier: Apache-2.0
// The table of a library of kernels: each generated source adds its entries when it is loaded.
#pragma once
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

#include "nativeops/devices/abi.h"

namespace nativeops {

// Grown by hand: <vector> is a tenth of the time that a small op takes to compile.
struct RegisteredEntries {
  NativeopsEntry* data = nullptr;
  size_t count = 0;
};
inline RegisteredEntries registered_entries;

struct Registered {
  Registered(std::initializer_list<NativeopsEntry> list) {
    RegisteredEntries& all = registered_entries;
    void* grown = std::realloc(all.data, (all.count + list.size()) * sizeof(NativeopsEntry));
    if (grown == nullptr) throw std::bad_alloc();
    all.data = static_cast<NativeopsEntry*>(grown);
    std::memcpy(all.data + all.count, list.begin(), list.size() * sizeof(NativeopsEntry));
    all.count += list.size();
  }
};

}  // namespace nativeops
