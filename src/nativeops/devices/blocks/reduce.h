// SPDX-License-Identifier: Apache-2.0
// What kernels with many threads share: ranges and reductions. Their order depends on the sizes
// alone, so that results are reproducible. A block that reduces has whole warps of 32 threads, all
// of which take part.
#pragma once
#include <cstdint>
#include <type_traits>

// Before a loop of a number of turns that only the GPU knows: to unroll it, nvcc would first count
// them by a division, for each thread.
#if defined(__CUDACC__)
#define NATIVEOPS_ROLLED _Pragma("unroll 1")
#else
#define NATIVEOPS_ROLLED
#endif

namespace nativeops {

// How many blocks suit a loop over n elements, given to `launch` with kBlockThreads.
inline unsigned grid_for(int64_t n) {
  return static_cast<unsigned>(
      min2<int64_t>(ceil_div(n, kBlockThreads), min2<int64_t>(kMaxGrid, 65535)));
}

// `for (int64_t i : range(n))` gives every i in [0, n) to one thread of a grid and blocks in x.
struct Range {
  struct Iterator {
    int64_t i, step;
    KERNEL int64_t operator*() const { return i; }
    KERNEL void operator++() { i += step; }
    KERNEL bool operator!=(Iterator other) const { return i < other.i; }
  };
  int64_t low, high, step;
  KERNEL Iterator begin() const { return {low, step}; }
  KERNEL Iterator end() const { return {high, step}; }
};
KERNEL inline Range range(int64_t n) {
  const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  return {first, n, int64_t{gridDim.x} * blockDim.x};
}

// take(i, f(i)) for i, i + step, .. below end, in order. A thread waits some hundred turns of its
// clock for a number from memory, and for several of them no longer: so f is called for so many
// indices before one of its values is taken, as what is written keeps the reads behind it waiting.
template <class F, class Take>
KERNEL void in_batches(int64_t i, int64_t end, int64_t step, const F& f, const Take& take) {
  using Value = std::decay_t<decltype(f(i))>;
  constexpr int kBatch = 4;
  NATIVEOPS_ROLLED
  for (; i + (kBatch - 1) * step < end; i += kBatch * step) {
    Value some[kBatch];
    NATIVEOPS_UNROLL
    for (int u = 0; u < kBatch; ++u) some[u] = f(i + u * step);
    NATIVEOPS_UNROLL
    for (int u = 0; u < kBatch; ++u) take(i + u * step, some[u]);
  }
  NATIVEOPS_ROLLED
  for (; i < end; i += step) take(i, f(i));
}

struct FoldSum {
  template <class T>
  KERNEL T operator()(T a, T b) const {
    return a + b;
  }
};
struct FoldMax {
  template <class T>
  KERNEL T operator()(T a, T b) const {
    return max_or_nan(a, b);
  }
};
struct FoldMin {
  template <class T>
  KERNEL T operator()(T a, T b) const {
    return min_or_nan(a, b);
  }
};

template <class T, class Fold>
KERNEL T warp_reduce(T value, Fold fold) {
  for (int mask = 16; mask > 0; mask /= 2) value = fold(value, warp_exchange(value, mask));
  return value;
}

// Known to all threads; what they wrote before is visible to all afterwards. They must meet once
// more before one of them writes to `part`, one number for each of at most 32 warps.
template <class T, class Fold>
KERNEL T block_reduce_by(T* part, T value, Fold fold) {
  constexpr unsigned kFew = 8;
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned warps = ceil_div(blockDim.x * blockDim.y * blockDim.z, 32);
  value = warp_reduce(value, fold);
  if (thread % 32 == 0) part[thread / 32] = value;
  sync();
  T first[kFew];  // also where there are fewer: to read them one after another takes longer
  NATIVEOPS_UNROLL
  for (unsigned w = 0; w < kFew; ++w) first[w] = part[w];
  value = first[0];
  NATIVEOPS_UNROLL
  for (unsigned w = 1; w < kFew; ++w) value = w < warps ? fold(value, first[w]) : value;
  NATIVEOPS_ROLLED
  for (unsigned w = kFew; w < warps; ++w) value = fold(value, part[w]);
  return value;
}
template <class T, class Fold>
KERNEL T block_reduce(T value, Fold fold) {
  SHARED T part[32];
  value = block_reduce_by(part, value, fold);
  sync();
  return value;
}

template <class T>
KERNEL T warp_sum(T value) {
  return warp_reduce(value, FoldSum{});
}
template <class T>
KERNEL T warp_max(T value) {
  return warp_reduce(value, FoldMax{});
}
template <class T>
KERNEL T block_sum(T value) {
  return block_reduce(value, FoldSum{});
}
template <class T>
KERNEL T block_max(T value) {
  return block_reduce(value, FoldMax{});
}

}  // namespace nativeops
