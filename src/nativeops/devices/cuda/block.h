// SPDX-License-Identifier: Apache-2.0
// Kernels in raw CUDA style on CUDA: threadIdx, blockIdx, blockDim, gridDim, warpSize, __shared__,
// __syncthreads, shuffles and atomicAdd are CUDA's own.
#pragma once
#include <cstdint>

#include "nativeops/devices/cuda/device.h"
#include "nativeops/devices/math.h"

#define SHARED __shared__
#define NATIVEOPS_UNROLL _Pragma("unroll")

namespace nativeops {

using Dim3 = dim3;

constexpr int64_t kMaxGrid = 0x7fffffff;
constexpr int kBlockThreads = 256;  // of the loop shapes
constexpr int kTileThreads = 8;     // rows of threads of a tile; each row has kTile of them
constexpr int kTile = 32;
constexpr int kContractSide = 16;             // threads along each axis of a contraction's block
constexpr int64_t kScratchBytes = 48 * 1024;  // the shared memory that every device gives a block

__device__ inline void sync() { __syncthreads(); }

// The value of the thread of the same warp whose lane differs in the bits of `mask`.
template <class T>
__device__ T warp_exchange(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

// The shared memory asked for with a launch.
__device__ inline void* shared_scratch() {
  extern __shared__ double2 nativeops_shared_scratch[];
  return nativeops_shared_scratch;
}

template <class F>
__global__ void run_kernel(F kernel) {
  kernel();
}

// kernel() runs in every thread of the grid.
template <class F>
void launch(Device& dev, Dim3 grid, Dim3 block, F kernel, int64_t scratch_bytes = 0) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  run_kernel<<<grid, block, static_cast<size_t>(scratch_bytes), dev.stream>>>(kernel);
  check_cuda(cudaGetLastError(), "launch a kernel");
}

__device__ inline int64_t atomicAdd(int64_t* target, int64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(int64_t), "CUDA's 64-bit atomic");
  return static_cast<int64_t>(::atomicAdd(reinterpret_cast<unsigned long long*>(target),
                                          static_cast<unsigned long long>(value)));
}
using ::atomicAdd;

}  // namespace nativeops
