// SPDX-License-Identifier: Apache-2.0
// What kernels with many threads share: ranges and reductions. Their order depends on the sizes
// alone, so that results are reproducible. A block that reduces has whole warps of 32 threads, all
// of which take part.
#pragma once
#include <cstdint>

namespace nativeops {

// How many blocks suit a loop over n elements, given to `launch` with kBlockThreads.
inline unsigned grid_for(int64_t n) {
  return static_cast<unsigned>(
      min2<int64_t>((n + kBlockThreads - 1) / kBlockThreads, min2<int64_t>(kMaxGrid, 65535)));
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

// Known to all threads; what they wrote before is visible to all afterwards.
template <class T, class Fold>
KERNEL T block_reduce(T value, Fold fold) {
  SHARED T part[32];
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned warps = (blockDim.x * blockDim.y * blockDim.z + 31) / 32;
  value = warp_reduce(value, fold);
  if (thread % 32 == 0) part[thread / 32] = value;
  sync();
  value = part[0];
  for (unsigned w = 1; w < warps; ++w) value = fold(value, part[w]);
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
