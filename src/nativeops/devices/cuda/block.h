// SPDX-License-Identifier: Apache-2.0
// Kernels in raw CUDA style on CUDA: threadIdx, blockIdx, blockDim, gridDim, warpSize, __shared__,
// __syncthreads, shuffles and atomicAdd are CUDA's own.
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/cuda/device.h"
#include "nativeops/devices/half.h"
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

inline void allow_scratch(const void* function, int64_t bytes) {
  check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "give a block its shared memory");
}

// kernel() runs in every thread of the grid.
template <class F>
void launch(Device& dev, Dim3 grid, Dim3 block, F kernel, int64_t scratch_bytes = 0) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  // Without it kScratchBytes are for this and for the kernel's own shared arrays together, which
  // may be half of them. Every GPU from compute capability 7 on has more.
  if (scratch_bytes > kScratchBytes / 2) {
    allow_scratch(reinterpret_cast<const void*>(run_kernel<F>), kScratchBytes);
  }
  run_kernel<<<grid, block, static_cast<size_t>(scratch_bytes), dev.stream>>>(kernel);
  check_cuda(cudaGetLastError(), "launch a kernel");
}

// The same in blocks of as many threads as there can be, which have fewer registers each.
constexpr int kLargeBlock = 1024;
template <class F>
__global__ void __launch_bounds__(kLargeBlock) run_large_kernel(F kernel) {
  kernel();
}
template <class F>
void launch_large(Device& dev, unsigned grid, F kernel) {
  if (grid == 0) return;
  run_large_kernel<<<grid, kLargeBlock, 0, dev.stream>>>(kernel);
  check_cuda(cudaGetLastError(), "launch a kernel");
}

// How many blocks of one thread each multiprocessor may surely run at the same time, so that they
// can wait for one another, and with how much shared memory; none on devices without such launches.
struct Together {
  int64_t blocks = 0, scratch_bytes = 0;
};
struct Idle {
  __device__ void operator()() const {}
};
inline int device_has(const Device& dev, cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, dev.device_id), "describe the device");
  return value;
}
inline Together together(const Device& dev) {
  // Before compute capability 8 a thread waits for each copy to shared memory. A later GPU may run
  // code that was compiled for an earlier one, which has no instructions of its matrix units
  // either.
  cudaFuncAttributes code{};
  check_cuda(cudaFuncGetAttributes(&code, run_kernel<Idle>), "describe a kernel");
  if (!device_has(dev, cudaDevAttrCooperativeLaunch) || code.ptxVersion < 80) return {};
  return {device_has(dev, cudaDevAttrMultiProcessorCount),
          device_has(dev, cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

// launch, with all blocks at the same time: within the bounds of `together`.
template <class F>
void launch_together(Device& dev, unsigned grid, unsigned block, F kernel, int64_t scratch_bytes) {
  const auto function = reinterpret_cast<const void*>(run_kernel<F>);
  cudaFuncAttributes own{};
  check_cuda(cudaFuncGetAttributes(&own, function), "describe a kernel");
  // As much as there is, not as much as this call takes: another thread's call may take more.
  const int64_t most = device_has(dev, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  allow_scratch(function, most - static_cast<int64_t>(own.sharedSizeBytes));
  void* arguments[] = {&kernel};
  check_cuda(cudaLaunchCooperativeKernel(function, dim3(grid), dim3(block), arguments,
                                         static_cast<size_t>(scratch_bytes), dev.stream),
             "launch a kernel whose blocks wait for one another");
}

// What some blocks of such a launch meet at. A block that arrives has written what the others read
// after they awaited as many arrivals as there are; `count` begins as 0 and is only counted up,
// also past 2^32.
__device__ inline void arrive(unsigned* count) {
  sync();
  if (threadIdx.x != 0) return;
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
__device__ inline void await_arrivals(const unsigned* count, unsigned wanted) {
  if (threadIdx.x == 0) {
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    } while (static_cast<int>(seen - wanted) < 0);
  }
  sync();
}

// 16 bytes that another block may have just written: not from this multiprocessor's cache.
__device__ inline Words read_fresh_words(const void* from) {
  const uint4 words = __ldcg(static_cast<const uint4*>(from));
  return {{words.x, words.y, words.z, words.w}};
}

// sums += a·b by the matrix unit of a warp: 16 x 16 and 16 x 8 numbers of two bytes, spread over
// its lanes as PTX's mma.m16n8k16 has them.
template <class Half>
__device__ void warp_multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800  // where no kernel runs together
  __trap();
#else
#define NATIVEOPS_MULTIPLY(type)                                             \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (std::is_same_v<Half, bf16>) {
    NATIVEOPS_MULTIPLY("bf16");
  } else {
    NATIVEOPS_MULTIPLY("f16");
  }
#undef NATIVEOPS_MULTIPLY
#endif
}

// 16 bytes that others may have just written, on their way to shared memory while this thread goes
// on. They are there once this thread awaited all of its groups but the last `left`, and has met
// the others.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800  // a later GPU may run this code, too
__device__ inline void copy_early(void* shared, const void* from) {
  *static_cast<float4*>(shared) = __ldcg(static_cast<const float4*>(from));
}
__device__ inline void end_copies() {}
template <int left>
__device__ void await_copies() {}
#else
__device__ inline void copy_early(void* shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(from)
               : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left>
__device__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}
#endif

__device__ inline int64_t atomicAdd(int64_t* target, int64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(int64_t), "CUDA's 64-bit atomic");
  return static_cast<int64_t>(::atomicAdd(reinterpret_cast<unsigned long long*>(target),
                                          static_cast<unsigned long long>(value)));
}
using ::atomicAdd;

}  // namespace nativeops
