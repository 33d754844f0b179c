// SPDX-License-Identifier: Apache-2.0
// Kernels in raw CUDA style on the CPU. With NATIVEOPS_THREADS_APART, for kernels whose threads do
// nothing with each other, the threads of a block run in turn. Otherwise a block is one thread, so
// sync() is nothing, shared memory is local, and blockDim and warpSize are 1: a kernel must be
// right for every size of block and warp, it loops over range(n), or from its thread index in steps
// of the number of threads.
#pragma once
#include <cstdint>
#include <exception>

#include "nativeops/devices/atomic.h"
#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/math.h"

#define SHARED alignas(64)
#define __shared__ SHARED
#define NATIVEOPS_IVDEP _Pragma("GCC ivdep")

namespace nativeops {

struct Dim3 {
  unsigned x, y, z;
  constexpr Dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
using dim3 = Dim3;
#if defined(NATIVEOPS_THREADS_APART)
inline thread_local Dim3 threadIdx{0, 0, 0}, blockDim{1, 1, 1};
#else
constexpr Dim3 threadIdx{0, 0, 0}, blockDim{1, 1, 1};
#endif
constexpr int warpSize = 1;
inline thread_local Dim3 blockIdx{0, 0, 0}, gridDim{1, 1, 1};

inline void sync() {}
inline void __syncthreads() {}
inline void __syncwarp(unsigned = 0xffffffffu) {}

struct NoSuchLane : std::exception {
  const char* what() const noexcept override {
    return "a warp has one thread on the CPU: shuffle by offsets below warpSize, or call warp_sum";
  }
};

// The value of another lane of the warp. There is one lane, so a loop over offsets below warpSize
// never asks; who does has counted on 32 of them, and would sum up wrongly.
template <class T>
T value_of_lane(T value, int lane) {
  if (lane != 0) throw NoSuchLane();
  return value;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return value_of_lane(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
  return value_of_lane(value, lanes);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned lanes) {
  return value_of_lane(value, static_cast<int>(lanes));
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned) {
  return value;  // as for the first lane of any warp
}

// Below this many operations a loop is not worth a second thread (Zen4 EPYC, 2026-11).
constexpr int64_t kGrain = 16384;

// How many blocks suit a loop over n elements. It depends on n alone, as every partition must.
inline unsigned grid_for(int64_t n) {
  return static_cast<unsigned>(min2<int64_t>(ceil_div(n, kGrain), 4096));
}

// kernel() runs in every block of the grid.
template <class F>
void launch(Device& dev, Dim3 grid, [[maybe_unused]] Dim3 block, F kernel) {
  const int64_t plane = int64_t{grid.x} * grid.y;
  dev.parallel(plane * grid.z, [&](int64_t i) {
    gridDim = grid;
    blockIdx = Dim3(static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                    static_cast<unsigned>(i / plane));
#if defined(NATIVEOPS_THREADS_APART)
    blockDim = block;
    for (unsigned z = 0; z < block.z; ++z) {
      for (unsigned y = 0; y < block.y; ++y) {
        for (unsigned x = 0; x < block.x; ++x) threadIdx = Dim3(x, y, z), kernel();
      }
    }
#else
    kernel();
#endif
  });
}

// `for (int64_t i : range(n))` gives every i in [0, n) to one thread of a grid in x: to each block
// a contiguous part here, which vectorises, and to each thread of CUDA a stride.
struct Range {
  struct Iterator {
    int64_t i;
    int64_t operator*() const { return i; }
    void operator++() { ++i; }
    bool operator!=(Iterator other) const { return i < other.i; }
  };
  int64_t low, high;
  Iterator begin() const { return {low}; }
  Iterator end() const { return {high}; }
};
inline Range range(int64_t n) {
  const int64_t part = ceil_div(n, gridDim.x), low = min2<int64_t>(n, part * blockIdx.x);
  return {low, min2<int64_t>(n, low + part)};
}

// Reductions over the threads of a warp and of a block, of which there is one.
template <class T>
T warp_sum(T value) {
  return value;
}
template <class T>
T warp_max(T value) {
  return value;
}
template <class T>
T block_sum(T value) {
  return value;
}
template <class T>
T block_max(T value) {
  return value;
}

}  // namespace nativeops
