// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <mutex>
#include <unordered_map>

namespace nativeops::core {
namespace {

constexpr size_t kPage = 4096, kHuge = size_t{2} << 20;
#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeeps = false;  // it would not notice who uses memory given back
#else
constexpr bool kKeeps = true;
#endif
constexpr size_t kLeast = kKeeps ? kWorthKeeping : SIZE_MAX;
constexpr size_t kReady = size_t{64} << 20, kKept = size_t{2} << 30;
constexpr size_t kBlocks = 256;  // each call looks through all of them

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Blocks that were given back, the last one first, at most kKept bytes. Of those beyond the first
// kReady bytes the kernel may take the pages whenever it is short of memory (MADV_FREE).
class Cache {
 public:
  void* take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto best = free_.end();
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      const bool fits = block->bytes >= bytes && block->bytes <= bytes + bytes / 4;
      if (fits && (best == free_.end() || block->bytes < best->bytes)) best = block;
    }
    if (best == free_.end()) return nullptr;
    void* memory = best->memory;
    kept_ -= best->bytes;
    lent_[memory] = best->bytes;
    free_.erase(best);
    return memory;
  }
  void lend(void* memory, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    lent_[memory] = bytes;
  }
  // False if it is no block that was lent.
  bool give_back(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = lent_.find(memory);
    if (found == lent_.end()) return false;
    free_.push_front({memory, found->second, true});
    kept_ += found->second;
    lent_.erase(found);
    size_t sum = 0;
    for (Block& block : free_) {
      sum += block.bytes;
      if (sum <= kReady || !block.ready) continue;
      madvise(block.memory, block.bytes, MADV_FREE);
      block.ready = false;
    }
    while (kept_ > kKept || free_.size() > kBlocks) drop_last();
    return true;
  }
  void drop_all() {
    const std::lock_guard<std::mutex> lock(mutex);
    while (!free_.empty()) drop_last();
  }

  std::mutex mutex;

 private:
  struct Block {
    void* memory;
    size_t bytes;
    bool ready;
  };
  void drop_last() {
    kept_ -= free_.back().bytes;
    std::free(free_.back().memory);
    free_.pop_back();
  }

  std::list<Block> free_;
  std::unordered_map<void*, size_t> lent_;
  size_t kept_ = 0;
};

// Small blocks that a thread gave back. glibc cuts an aligned block out of a larger one and puts
// both together again: 0.2 of 7.5 us for the five workspaces of a small recurrent step.
constexpr size_t kSmall = 4096;
constexpr bool is_small(size_t bytes) { return kKeeps && bytes <= kSmall; }

// Without a destructor, so that it is there as long as its thread: what other objects of the thread
// give back while they are destroyed must find it.
struct SmallBlocks {
  static constexpr int kMost = 16;
  void* block[kMost];
  int count, room;
  bool ended;
};
thread_local SmallBlocks small;

// Frees them when the thread ends. From then on none is kept.
struct SmallBlocksEnd {
  SmallBlocksEnd() { small.room = SmallBlocks::kMost; }
  ~SmallBlocksEnd() {
    small.room = 0, small.ended = true;
    while (small.count > 0) std::free(small.block[--small.count]);
  }
  void exists() {}
};
thread_local SmallBlocksEnd at_end;

void* take_small() {
  return small.count > 0 ? small.block[--small.count] : std::aligned_alloc(64, kSmall);
}
void give_back_small(void* memory) {
  if (small.room == 0 && !small.ended) at_end.exists();  // as it does from its first use on
  if (small.count < small.room)
    small.block[small.count++] = memory;
  else
    std::free(memory);
}

// Never destroyed: threads may give back while the process ends. A forked child must not find it
// locked by a thread that only its parent has.
Cache& cache() {
  static Cache* const only = [] {
    auto* made = new Cache;
    pthread_atfork([] { cache().mutex.lock(); }, [] { cache().mutex.unlock(); },
                   [] { cache().mutex.unlock(); });
    return made;
  }();
  return *only;
}

}  // namespace

void* allocate(size_t bytes) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  if (bytes < kLeast) return std::aligned_alloc(64, round_up(bytes, 64));
  const size_t size = round_up(bytes, bytes < kLarge ? kPage : kHuge);
  if (void* memory = cache().take(size)) return memory;
  const auto fresh = [&] { return std::aligned_alloc(bytes < kLarge ? kPage : kHuge, size); };
  void* memory = fresh();
  if (memory == nullptr) cache().drop_all(), memory = fresh();
  if (memory == nullptr) return nullptr;
  expect_writes(memory, size);
  cache().lend(memory, size);
  return memory;
}

void release(void* memory) {
  const bool perhaps_kept = reinterpret_cast<uintptr_t>(memory) % kPage == 0;
  if (!perhaps_kept || !cache().give_back(memory)) std::free(memory);
}

void* allocate_workspace(size_t bytes) { return is_small(bytes) ? take_small() : allocate(bytes); }
void release_workspace(void* memory, size_t bytes) {
  is_small(bytes) ? give_back_small(memory) : release(memory);
}

void drop_kept() { cache().drop_all(); }

void expect_writes(void* memory, size_t bytes) {
  if (bytes < kLarge) return;
  const auto first = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t start = round_up(first, kPage), end = (first + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);  // advice: may be refused
}

}  // namespace nativeops::core
