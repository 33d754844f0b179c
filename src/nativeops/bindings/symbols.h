// SPDX-License-Identifier: Apache-2.0
// What libraries that are loaded already hold.
#pragma once
#include <dlfcn.h>

#include <cstring>

namespace nativeops {

// Null if it is not loaded.
inline void* loaded(const char* library) { return dlopen(library, RTLD_NOW | RTLD_NOLOAD); }

// False, and `function` is null, where there is no such library or it lacks the name.
template <class Function>
bool look_up(void* library, const char* name, Function& function) {
  void* address = library ? dlsym(library, name) : nullptr;
  std::memcpy(&function, &address, sizeof address);
  return address != nullptr;
}

}  // namespace nativeops
