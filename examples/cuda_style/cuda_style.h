// SPDX-License-Identifier: Apache-2.0
// A map and a sum, each as text for CUDA and with ranges. Declared in cuda_style.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[i] = x[i] / (1 + |x[i]|), a thread in steps of all threads
inline void softsign_raw(Device& dev, In<float, 1> x, Out<float, 1> out) {
  launch(dev, dim3(1024), dim3(256), [=] KERNEL() {
    int64_t idx = threadIdx.x + int64_t{blockDim.x} * blockIdx.x;
    while (idx < x.size(0)) {
      out(idx) = x(idx) / (1 + abs(x(idx)));
      idx += int64_t{gridDim.x} * blockDim.x;
    }
  });
}

// The same with a range, that gives each block of the CPU a contiguous part
inline void softsign_range(Device& dev, In<float, 1> x, Out<float, 1> out) {
  launch(dev, grid_for(x.size(0)), 256, [=] KERNEL() {
    for (int64_t i : range(x.size(0))) out(i) = x(i) / (1 + abs(x(i)));
  });
}

// And as a loop shape
inline void softsign_each(Device& dev, In<float, 1> x, Out<float, 1> out) {
  for_each(dev, out, [=] KERNEL(int64_t i) { out(i) = x(i) / (1 + abs(x(i))); });
}

// out = Σ x[i], of a warp by shuffles, of a block in shared memory, of all by an atomic sum: in no
// fixed order, so that the last bits differ from call to call
inline void total_raw(Device& dev, In<float, 1> x, Out<float, 0> out) {
  launch(dev, dim3(1), dim3(1), [=] KERNEL() { out() = 0; });
  launch(dev, dim3(1024), dim3(256), [=] KERNEL() {
    __shared__ float part[32];
    float sum = 0;
    int64_t idx = threadIdx.x + int64_t{blockDim.x} * blockIdx.x;
    while (idx < x.size(0)) {
      sum += x(idx);
      idx += int64_t{gridDim.x} * blockDim.x;
    }
    for (int offset = warpSize / 2; offset > 0; offset /= 2) {
      sum += __shfl_down_sync(0xffffffff, sum, offset);
    }
    if (threadIdx.x % warpSize == 0) part[threadIdx.x / warpSize] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned warp = 1; warp < blockDim.x / warpSize; ++warp) sum += part[warp];
      atomicAdd(&out(), sum);
    }
  });
}

// The same by a team for each part, and one for the parts' sums: always the same bits
inline void total_team(Device& dev, In<float, 1> x, Out<float, 0> out) {
  constexpr int64_t kPart = 16384;
  const int64_t n = x.size(0), parts = ceil_div(n, kPart);
  auto memory = dev.workspace<float>(parts);
  const View<float, 1> sums = dense(memory.data(), parts);
  for_each_item(dev, parts, [=] KERNEL(Team team, int64_t part) {
    const int64_t first = part * kPart, last = min2(n, first + kPart);
    const float sum = team.sum(first, last, [=](int64_t i) { return x(i); });
    if (team.rank() == 0) sums(part) = sum;
  });
  for_each_item(dev, 1, [=] KERNEL(Team team, int64_t) {
    const float sum = team.sum(0, parts, [=](int64_t i) { return sums(i); });
    if (team.rank() == 0) out() = sum;
  });
}

}  // namespace nativeops
