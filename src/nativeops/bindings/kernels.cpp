// SPDX-License-Identifier: Apache-2.0
// Libraries of compiled kernels: loading them, and which kernel an op uses.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>

#include "nativeops/bindings/core.h"
#include "nativeops/bindings/memory.h"
#include "nativeops/devices/cpu/features.h"
#include "nativeops/devices/cpu/pool.h"

namespace nativeops::core {

const char* const kLevels[4] = {"portable", "avx2", "avx512", "amx"};

namespace {

struct Candidate {
  std::string op, signature;
  int device, level, combination;
  bool tuned;
  NativeopsKernel kernel;
};

std::mutex libraries_mutex;
// A call of a product may load a library without Python's lock: a fork waits for it.
[[maybe_unused]] const int watched =
    pthread_atfork([] { libraries_mutex.lock(); }, [] { libraries_mutex.unlock(); },
                   [] { libraries_mutex.unlock(); });
std::deque<Candidate>& candidates() {
  static auto* list = new std::deque<Candidate>;
  return *list;
}
std::atomic<const NativeopsLibrary*> libraries[4] = {};  // the package's own for the CPU, by level
NativeopsKernel copy_on_cuda = nullptr;
int level_in_use = -1;

int level_index(const char* name) {
  for (int i = 0; i < 4; ++i)
    if (std::strcmp(kLevels[i], name) == 0) return i;
  return 0;
}

// "float32,int64" as the position in Op::kernels.
int combination_of(const std::string& dtypes) {
  int floats = 0, ints = 0;
  for (int i = 0; i < kFirstInt + kInts; ++i) {
    const std::string name = kDtypeNames[i];
    const auto at = dtypes.find(name);
    // "int32" must not be found inside another word such as "uint32".
    if (at == std::string::npos || (at > 0 && dtypes[at - 1] != ',')) continue;
    (i < kFirstInt ? floats : ints) = i < kFirstInt ? i : i - kFirstInt;
  }
  return floats * kInts + ints;
}

// A tuned kernel goes before a portable one, then the better instruction set.
int rank_of(const Candidate& c) { return c.tuned * 8 + c.level; }

void choose(const std::string& name) {
  for (int id = 0; id < op_count(); ++id) {
    Op& op = op_at(id);
    if (op.name != name) continue;
    for (int device = 0; device < kDevices; ++device)
      for (int combination = 0; combination < kCombinations; ++combination) {
        const Candidate* best = nullptr;
        for (const Candidate& c : candidates()) {
          if (c.op != name || c.device != device || c.combination != combination) continue;
          if (c.level > selected_level() || c.signature != op.signature) continue;
          if (!best || rank_of(c) >= rank_of(*best)) best = &c;
        }
        op.kernels[device][combination] = best ? best->kernel : nullptr;
      }
  }
}

void choose_all() {
  for (int id = 0; id < op_count(); ++id) choose(op_at(id).name);
}

// The package's own library of an instruction set, if it was built. A process that uses nothing but
// its own ops may not have loaded it: it is looked for once, and not again by each product.
const NativeopsLibrary* own_library(int level) {
  static std::once_flag looked_for[4];
  std::call_once(looked_for[level], [level] {
    Dl_info here;
    if (libraries[level] != nullptr || dladdr(kLevels, &here) == 0) return;
    const std::string file = here.dli_fname;
    const std::string folder = file.substr(0, file.rfind('/') + 1);
    std::string error;
    load_library((folder + "libnativeops_cpu_" + kLevels[level] + ".so").c_str(), error);
  });
  return libraries[level];
}

}  // namespace

NativeopsMemory lend(const NativeopsCall*, size_t bytes) {
  return {allocate_workspace(bytes), nullptr, bytes};
}
void take_back(const NativeopsCall*, NativeopsMemory memory) {
  release_workspace(memory.data, memory.bytes);
}

// The core's own pool waits for nobody who is late, and its threads do not spin for long: the
// system stops them too seldom to matter (benchmarks/NOTES.md).
int32_t never() { return 0; }

int32_t multiply(const NativeopsServices* own, const NativeopsCall* call,
                 const NativeopsProduct* product) {
  for (int level = selected_level(); level >= 0; --level) {
    const NativeopsLibrary* library = own_library(level);
    if (library) return library->multiply(own, call, product);
  }
  return kNativeopsFailed;
}

const NativeopsServices* services() {
  static const NativeopsServices table = {
      sizeof(NativeopsServices), cpu::parallel, cpu::num_threads, lend, take_back, never, multiply};
  return &table;
}

const NativeopsServices* cuda_services() {
  static const NativeopsServices table = {
      sizeof(NativeopsServices), cpu::parallel, cpu::num_threads, nullptr, nullptr, never, nullptr};
  return &table;
}

NativeopsKernel cuda_copy() { return copy_on_cuda; }

int machine_level() {
  static const int level = cpu::level();
  return level;
}

int selected_level() { return level_in_use < 0 ? machine_level() : level_in_use; }

const NativeopsLibrary* selected_library() { return libraries[selected_level()]; }

void select_level(int level) {
  const std::lock_guard<std::mutex> lock(libraries_mutex);
  level_in_use = std::min(level, machine_level());
  choose_all();
}

const NativeopsLibrary* load_library(const char* path, std::string& error) {
  const std::lock_guard<std::mutex> lock(libraries_mutex);
  if (*path) {  // an empty path only chooses again, for ops defined since
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return error = dlerror(), nullptr;
    const auto table =
        reinterpret_cast<NativeopsLibraryFunction>(dlsym(handle, NATIVEOPS_LIBRARY_SYMBOL));
    if (!table) return error = "it is no library of nativeops kernels", nullptr;
    const NativeopsLibrary* library = table();
    if (std::count(std::begin(libraries), std::end(libraries), library)) return library;
    if (library->abi != NATIVEOPS_ABI)
      return error = "it was built for another version of nativeops", nullptr;
    if (library->copy) copy_on_cuda = library->copy;
    if (library->multiply) libraries[level_index(library->level)] = library;
    for (int i = 0; i < library->n_entries; ++i) {
      const NativeopsEntry& entry = library->entries[i];
      candidates().push_back({entry.op, entry.signature,
                              std::strcmp(library->device, "cuda") == 0 ? 1 : 0,
                              level_index(library->level), combination_of(entry.dtypes),
                              entry.tuned != 0, entry.kernel});
    }
    choose_all();
    return library;
  }
  choose_all();
  return nullptr;
}

}  // namespace nativeops::core
