// SPDX-License-Identifier: Apache-2.0
// Memory that is lent again; run under ThreadSanitizer by test_memory.py, too.
#include "nativeops/bindings/memory.h"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "expect.h"

using nativeops::core::allocate;
using nativeops::core::allocate_workspace;
using nativeops::core::release;
using nativeops::core::release_workspace;

namespace {

constexpr size_t kMega = size_t{1} << 20;

void blocks_are_lent_again() {
  for (const size_t bytes : {kMega, 8 * kMega, 40 * kMega + 1}) {
    void* first = allocate(bytes);
    std::memset(first, 1, bytes);
    release(first);
    void* again = allocate(bytes - bytes / 10);
    expect(again == first, "a block is lent again for nearly as much");
    void* other = allocate(bytes);
    expect(other != first, "nobody gets a block that is lent");
    release(other);
    release(again);
    void* little = allocate(bytes / 2);
    expect(little != first && little != other, "a block is not lent for much less");
    release(little);
  }
}

void every_block_is_aligned() {
  for (const size_t bytes : {size_t{1}, size_t{1000}, kMega / 3, 5 * kMega, 33 * kMega}) {
    void* memory = allocate(bytes);
    expect(reinterpret_cast<uintptr_t>(memory) % 64 == 0, "blocks begin at a line of the caches");
    std::memset(memory, 2, bytes);
    release(memory);
  }
}

void what_is_kept_is_bounded() {
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(allocate(64 * kMega));  // never written
  for (void* block : blocks) release(block);
  expect(mallinfo2().hblkhd <= 2200 * kMega, "no more than 2 GB is kept");
}

void workspaces_are_lent_again() {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{4097}, kMega}) {
    std::vector<void*> blocks;
    for (int i = 0; i < 40; ++i) {  // more than a thread keeps
      blocks.push_back(allocate_workspace(bytes));
      expect(reinterpret_cast<uintptr_t>(blocks.back()) % 64 == 0, "workspaces are aligned");
      std::memset(blocks.back(), i, bytes);
    }
    for (int i = 0; i < 40; ++i) {
      expect(static_cast<char*>(blocks[i])[bytes - 1] == i, "no two workspaces are the same");
    }
    for (void* block : blocks) release_workspace(block, bytes);
  }
  void* one = allocate_workspace(100);
  release_workspace(one, 100);
  void* again = allocate_workspace(4000);
  expect(again == one, "a thread gets a small workspace again");
  std::thread other([&] {  // which keeps what it was given
    release_workspace(again, 4000);
    expect(allocate_workspace(1) == again, "wherever it was given back");
    release_workspace(again, 1);
  });
  other.join();
}

struct GivesBackLate {
  void* memory = nullptr;
  ~GivesBackLate() { release_workspace(memory, 100); }
};
void a_thread_that_ends_keeps_nothing() {
  const auto run = [] {
    std::thread([] {
      thread_local GivesBackLate late;
      late.memory = allocate_workspace(100);
      void* blocks[10];
      for (void*& block : blocks) block = allocate_workspace(100);
      for (void* block : blocks) release_workspace(block, 100);
    }).join();
  };
  run();
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 100; ++i) run();
  expect(mallinfo2().uordblks < before + 40 * 4096, "workspaces of a thread end with it");
}

void too_much_is_null() { expect(allocate(SIZE_MAX - 10) == nullptr, "too much is null"); }

void lend_and_write(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const size_t bytes = kMega / 2 + (i % 3) * kMega;
    auto* memory = static_cast<char*>(allocate(bytes));
    memory[0] = memory[bytes - 1] = static_cast<char>(i);
    release(memory);
  }
}

void many_threads_at_once() {
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) threads.emplace_back(lend_and_write, 300);
  for (auto& thread : threads) thread.join();
}

void a_child_is_not_locked_out() {
  std::atomic<bool> done{false};
  std::thread busy([&] {
    while (!done) lend_and_write(10);
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // ends a child that waits for a thread that it does not have
      lend_and_write(3);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child can allocate");
  }
  done = true;
  busy.join();
}

}  // namespace

int main(int argc, char**) {
  mallopt(M_ARENA_MAX, 1);  // so that mallinfo2 tells of all threads
  blocks_are_lent_again();
  every_block_is_aligned();
  workspaces_are_lent_again();
  too_much_is_null();
  many_threads_at_once();
  if (argc > 1) {  // not under ThreadSanitizer, which has its own allocator, and follows no fork
    a_thread_that_ends_keeps_nothing();
    what_is_kept_is_bounded();
    a_child_is_not_locked_out();
  }
  std::puts("all is true");
}
