// SPDX-License-Identifier: Apache-2.0
// CUDA's blocks on the CPU with a real thread for each of theirs, to find bugs without a GPU: under
// ThreadSanitizer every race inside a block is reported, and always a divergent barrier or one that
// not all threads reach. Blocks run one after the other, so shared memory is static.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "nativeops/devices/atomic.h"
#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/cpu_threads/barrier.h"
#include "nativeops/devices/half.h"
#include "nativeops/devices/math.h"

#define SHARED alignas(64) static
#define __shared__ SHARED
#define NATIVEOPS_UNROLL _Pragma("GCC unroll 8")

namespace nativeops {

struct Dim3 {
  unsigned x, y, z;
  constexpr Dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr int64_t count() const { return int64_t{x} * y * z; }
};
using dim3 = Dim3;
inline thread_local Dim3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim, gridDim;

constexpr int64_t kMaxGrid = 3;  // a loop shape does the rest in the loop of its blocks
constexpr int kBlockThreads = 64;
constexpr int kTileThreads = 4;
constexpr int kTile = 16;
constexpr int kContractSide = 8;
constexpr int64_t kScratchBytes = 48 * 1024;

constexpr int warpSize = 32;

namespace debug {

// A block that runs.
struct Running {
  BlockState block;
  Barrier barrier, warp_barrier[kMaxThreads / warpSize];
  alignas(64) char exchange[kMaxThreads][32];
  void* scratch = nullptr;
};
inline std::mutex one_launch;
inline std::atomic<bool> gave_up{false};  // some block: others need not wait for it
inline Running only;                      // block, of launches that run one after the other
inline thread_local Running* running = &only;
inline thread_local int64_t passed, warp_passed;

inline int thread_index() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

inline void check_whole_warp(unsigned mask) {
  if (mask != 0xffffffffu) {
    throw std::runtime_error("part of a warp: this device knows the mask 0xffffffff only");
  }
}

template <class F>
void run_thread(const F& kernel, Running* own, int thread, Dim3 index, Dim3 block, Dim3 grid) {
  running = own;
  passed = warp_passed = 0;
  const unsigned i = static_cast<unsigned>(thread);
  threadIdx = Dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y));
  blockIdx = index;
  blockDim = block;
  gridDim = grid;
  try {
    kernel();
  } catch (const Abandoned&) {
    gave_up.store(true, std::memory_order_relaxed);
  } catch (const std::exception& error) {
    running->block.fail(error.what());
    gave_up.store(true, std::memory_order_relaxed);
  }
  running->block.leave(thread);
}

template <class F>
void start_block(std::vector<std::thread>& threads, const F& kernel, Running* own, Dim3 index,
                 Dim3 block, Dim3 grid) {
  const int n = static_cast<int>(block.count());
  own->block.begin(index.x + int64_t{grid.x} * (index.y + int64_t{grid.y} * index.z), n);
  own->barrier.begin(0, n);
  for (int first = 0; first < n; first += warpSize) {
    own->warp_barrier[first / warpSize].begin(first, min2(warpSize, n - first));
  }
  for (int i = 0; i < n; ++i) {
    threads.emplace_back([=] { run_thread(kernel, own, i, index, block, grid); });
  }
}
inline void check_block(Running& own) {
  if (own.block.failed.load(std::memory_order_relaxed)) {
    throw std::runtime_error(own.block.take_message());
  }
}

template <class F>
void run_block(const F& kernel, Dim3 index, Dim3 block, Dim3 grid) {
  std::vector<std::thread> threads;
  start_block(threads, kernel, &only, index, block, grid);
  for (std::thread& thread : threads) thread.join();
  check_block(only);
}

}  // namespace debug

// __builtin_FILE and __builtin_LINE are those of the caller.
inline void sync(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  debug::running->barrier.wait(debug::running->block, debug::thread_index(), debug::passed, file,
                               line);
}
inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  sync(file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  debug::check_whole_warp(mask);
  const int me = debug::thread_index();
  debug::running->warp_barrier[me / warpSize].wait(debug::running->block, me, debug::warp_passed,
                                                   file, line);
}

// The value of the thread of the same warp with that lane; outside of the warp, the own value.
template <class T>
T value_of_lane(unsigned mask, T value, int lane, const char* file, int line) {
  static_assert(sizeof(T) <= 16, "a warp exchanges numbers");
  debug::Running& r = *debug::running;
  const int me = debug::thread_index();
  const int other = lane < 0 || lane >= warpSize ? me : me / warpSize * warpSize + lane;
  if (other >= r.block.n_threads) {
    throw std::runtime_error("thread " + std::to_string(me) + " reads from thread " +
                             std::to_string(other) + " of its warp, which the block lacks");
  }
  memcpy(r.exchange[me], &value, sizeof(T));
  __syncwarp(mask, file, line);
  memcpy(&value, r.exchange[other], sizeof(T));
  __syncwarp(mask, file, line);
  return value;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return value_of_lane(mask, value, lane & (warpSize - 1), file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  return value_of_lane(mask, value, (debug::thread_index() % warpSize) ^ lanes, file, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const int lane = debug::thread_index() % warpSize + static_cast<int>(lanes);
  return value_of_lane(mask, value, lane, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const int lane = debug::thread_index() % warpSize - static_cast<int>(lanes);
  return value_of_lane(mask, value, lane, file, line);
}
template <class T>
T warp_exchange(T value, int mask, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) {
  return __shfl_xor_sync(0xffffffffu, value, mask, file, line);
}

inline void* shared_scratch() { return debug::running->scratch; }

// A grid may be cut to a few blocks, each of which then turns its loop often: what is right for any
// size of the grid computes the same, and shows the barriers that only a second turn needs.
inline Dim3 cut_grid(Dim3 grid) {
  const char* given = std::getenv("NATIVEOPS_MOST_BLOCKS");
  const auto most = given == nullptr ? ~0u : static_cast<unsigned>(std::atoi(given));
  return Dim3(min2(grid.x, most), min2(grid.y, most), min2(grid.z, most));
}

template <class F>
void launch(Device& dev, Dim3 asked, Dim3 block, F kernel, int64_t scratch_bytes = 0) {
  const Dim3 grid = cut_grid(asked);
  if (block.count() > debug::kMaxThreads)
    throw std::runtime_error("a block has at most 1024 threads");
  std::lock_guard<std::mutex> lock(debug::one_launch);
  Workspace<char> scratch = dev.workspace<char>(scratch_bytes);
  debug::only.scratch = scratch.data();
  const bool backwards = std::getenv("NATIVEOPS_BLOCKS_BACKWARDS") != nullptr;
  for (int64_t n = 0; n < grid.count(); ++n) {
    const int64_t i = backwards ? grid.count() - 1 - n : n;
    const unsigned x = static_cast<unsigned>(i % grid.x), rest = static_cast<unsigned>(i / grid.x);
    debug::run_block(kernel, Dim3(x, rest % grid.y, rest / grid.y), block, grid);
  }
}

template <class F>
void launch_large(Device& dev, unsigned grid, F kernel) {
  launch(dev, grid, 2 * kBlockThreads, kernel);
}

// Few blocks and little memory, so that small sizes have the shapes that large ones have on a GPU.
struct Together {
  int64_t blocks = 0, scratch_bytes = 0;
};
inline Together together(const Device&) { return {5, 48 * 1024}; }

// The blocks really run at the same time. They share no SHARED variables here: only scratch.
template <class F>
void launch_together(Device& dev, unsigned grid, unsigned block, F kernel, int64_t scratch_bytes) {
  std::lock_guard<std::mutex> lock(debug::one_launch);
  Workspace<char> scratch = dev.workspace<char>(grid * scratch_bytes);
  std::vector<std::unique_ptr<debug::Running>> blocks;
  std::vector<std::thread> threads;
  debug::gave_up.store(false, std::memory_order_relaxed);
  for (unsigned i = 0; i < grid; ++i) {
    blocks.push_back(std::make_unique<debug::Running>());
    blocks[i]->scratch = scratch.data() + i * scratch_bytes;
    debug::start_block(threads, kernel, blocks[i].get(), i, block, grid);
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : blocks) debug::check_block(*each);
}

inline void arrive(unsigned* count, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  sync(file, line);
  if (debug::thread_index() == 0) __atomic_fetch_add(count, 1u, __ATOMIC_RELEASE);
}
inline void await_arrivals(const unsigned* count, unsigned wanted,
                           const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const auto early = [=] {
    return static_cast<int>(__atomic_load_n(count, __ATOMIC_ACQUIRE) - wanted) < 0;
  };
  while (debug::thread_index() == 0 && early()) {
    if (debug::gave_up.load(std::memory_order_relaxed)) throw debug::Abandoned();
    sched_yield();
  }
  sync(file, line);
}

inline Words read_fresh_words(const void* from) {
  Words words;
  memcpy(&words, from, sizeof words);
  return words;
}

// CUDA's matrix unit: each lane has its part of a and b, and gets its part of the product.
template <class Half>
void warp_multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                   const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  debug::Running& r = *debug::running;
  const int me = debug::thread_index(), lane = me % warpSize, first = me - lane;
  memcpy(r.exchange[me], a, sizeof a);
  memcpy(r.exchange[me] + sizeof a, b, sizeof b);
  __syncwarp(0xffffffffu, file, line);
  // Number k of row or column n lies with lane 4·(n mod 8) + k/2 mod 4, first of all by k/8.
  const auto number = [&](int lane_row, int word, int k) {
    const char* word_of = r.exchange[first + 4 * lane_row + k / 2 % 4] + 4 * word + 2 * (k % 2);
    Half half;
    memcpy(&half, word_of, sizeof half);
    return static_cast<float>(half);
  };
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, column = 2 * (lane % 4) + e % 2, lower = e / 2;
    for (int k = 0; k < 16; ++k) {
      sums[e] += number(row, lower + 2 * (k / 8), k) * number(column, 4 + k / 8, k);
    }
  }
  __syncwarp(0xffffffffu, file, line);
}
inline void copy_early(void* shared, const void* from) { memcpy(shared, from, 16); }
inline void end_copies() {}
template <int left>
void await_copies() {}

}  // namespace nativeops
