// SPDX-License-Identifier: Apache-2.0
// Every loop shape, both pairwise ops and dropout for every dtype: what must compile for CUDA.
#include "nativeops/devices/entry.h"
#include "nativeops/devices/gemm.h"
#include "nativeops/devices/kernel.h"
#include "nativeops/ops/dropout.h"
#include "nativeops/ops/pairwise_l1.h"
#include "nativeops/ops/pairwise_lp.h"

namespace nativeops {

template <class T>
void maps(Device& dev, In<T, 3> x, Out<T, 3> out) {
  View<T, 2> plane = at(out, 0);
  View<T, 1> line = at(plane, 0);
  View<T, 4> all{out.data, {1, 2, 3, 4}, {24, 12, 4, 1}};
  for_each(dev, line, [=] KERNEL(int64_t i) { line(i) = T(exp(Accum<T>(line(i)))); });
  for_each(dev, plane, [=] KERNEL(auto i, auto j) { plane(i, j) = T(tanh(Accum<T>(x(0, i, j)))); });
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i, int64_t j) {
    const Accum<T> v = x(b, i, j);
    const Accum<T> sum = sigmoid(v) + log(v) + log1p(v) + erf(v) + sqrt(v) + logaddexp(v, v);
    out(b, i, j) = T(sum + sign(v) + abs(v));
  });
  for_each(dev, all, [=] KERNEL(auto i, auto j, auto k, auto l) { all(i, j, k, l) = T(1); }, 9);
  fill(dev, line, [=] KERNEL(int64_t i) { return exp(Accum<T>(line(i))); });
  fill(dev, all, [=] KERNEL(auto i, auto j, auto k, auto l) { return all(i, j, k, l); }, 9);
  sum_rows(dev, 2, line, [=] KERNEL(int64_t b, int64_t i) { return Accum<T>(x(0, b, i)); });
}

template <class T>
void products(Device& dev, In<T, 3> x, In<T, 3> y, Out<T, 3> out) {
  using A = Accum<T>;
  contract(dev, out, x, y, [] KERNEL(A a, A c) { return a + c; }, Largest{});
  contract(dev, out, x, y, [] KERNEL(A a, A c) { return a + c; }, LogPlus{});
  contract(dev, out, zip(x, y), transpose(y), /*at=*/out,
           [] KERNEL(Pair<A, A> a, A c, A s) { return max2(a.first, a.second) * c + s; });
}

template <class T>
void matrix_products(Device& dev, In<T, 3> x, In<T, 3> y, Out<T, 3> out) {
  auto memory = dev.workspace<Accum<T>>(out.count());
  const auto sums = dense(memory.data(), out.size(0), out.size(1), out.size(2));
  gemm(dev, x, transpose(y), sums);
  gemm(dev, sums, y, out, 2, 1);
}

template <class T>
void teams(Device& dev, In<T, 3> x, Out<T, 3> out) {
  using A = Accum<T>;
  for_each_item(dev, x.size(1), [=] KERNEL(Team team, int64_t n) {
    SHARED A row[64];
    team.each(0, 64, [&](int64_t i) { row[i] = x(0, n, i); });
    team.sync();
    const A sum = team.sum(0, 64, [&](int64_t i) { return row[i]; });
    const A span = team.max(0, 64, [&](int64_t i) { return row[i]; }) -
                   team.min(0, 64, [&](int64_t i) { return row[i]; });
    const bool any = team.any(0, 64, [&](int64_t i) { return row[i] > 0; });
    team.each(0, 1, [&](int64_t i) { out(0, n, i) = T(any ? sum : span); });
    team.fill(at(at(out, 1), n), [&](int64_t i) { return row[i]; });
    team.sums(View<A, 1>{row, {64}, {1}}, 0, 9,
              [&](int64_t i, int64_t k) { return A(x(0, i, k)); });
  });
  for_each_large_item(dev, x.size(1), [=] KERNEL(Team team, int64_t n) {
    team.each_by_warp(0, 9, [=](Warp warp, int64_t i) {
      warp.sync();
      const A sum = warp.sum(0, 64, [=](int64_t j) { return A(x(i, n, j)); });
      const A span = sum + warp.max(0, 64, [=](int64_t j) { return A(x(i, n, j)); });
      warp.each(0, 9, [=](int64_t j) { out(i, n, j) = T(span); });
    });
  });
  for_each_item<A>(dev, x.size(1), 20000, [=] KERNEL(Team team, int64_t n, View<A, 1> scratch) {
    team.each(0, 9, [&](int64_t i) { scratch(i) = x(0, n, i); });
  });
}

template <class T>
void tiles(Device& dev, In<T, 3> x, Out<T, 3> out) {
  for_each_tile(dev, out, [=] KERNEL(Block block) {
    SHARED T tile[kTile][kTile + 1];
    PerThread<Accum<T>> sum(0);
    block.each([&](int r, int c) { tile[r][c] = x(block.batch, block.row + r, block.col + c); });
    block.sync();
    block.each([&](int r, int c) { sum(r, c) += tile[c][r]; });
    block.each([&](int r, int c) { out(block.batch, block.row + r, c) = T(sum(r, c)); });
  });
}

template <class T>
void cuda_style(Device& dev, Out<T, 3> out, Out<int64_t, 1> total) {
  launch(dev, grid_for(out.size(2)), kBlockThreads, [=] KERNEL() {
    SHARED int bins[8];
    if (threadIdx.x < 8) bins[threadIdx.x] = 0;
    __syncthreads();
    Accum<T> sum = 0;
    for (int64_t i : range(out.size(2))) {
      atomicAdd(&bins[i % 8], 1);
      sum += out(0, 0, i);
    }
    sum = block_sum(sum) + block_max(sum) + warp_sum(sum) + warp_max(sum);
    sync();
    if (threadIdx.x == 0) out(0, 0, blockIdx.x) = T(sum + static_cast<float>(bins[0]));
    if (threadIdx.x == 0) atomicAdd(&total(0), int64_t{1});
  });
}

// In the words of CUDA alone.
template <class T>
void cuda_text(Device& dev, In<T, 3> x, Out<T, 3> out) {
  const int n = static_cast<int>(out.size(2));
  launch(dev, dim3(4), dim3(64), [=] KERNEL() {
    __shared__ T part[32];
    T own = 0;
    int idx = threadIdx.x + blockDim.x * blockIdx.x;
    while (idx < n) {
      own += x(0, 0, idx);
      idx += gridDim.x * blockDim.x;
    }
    for (int offset = warpSize / 2; offset > 0; offset /= 2) {
      own += __shfl_down_sync(0xffffffff, own, offset);
    }
    own += __shfl_xor_sync(0xffffffff, own, 1) + __shfl_up_sync(0xffffffff, own, 1);
    if (threadIdx.x % warpSize == 0) part[threadIdx.x / warpSize] = own;
    __syncthreads();
    __syncwarp();
    if (threadIdx.x == 0) atomicAdd(&out(0, 0, 0), __shfl_sync(0xffffffff, part[0], 0));
  });
}

// Blocks that wait for one another.
template <class T>
void meetings(Device& dev, Out<T, 3> out, unsigned* met) {
  const unsigned blocks = static_cast<unsigned>(together(dev).blocks);
  if (blocks == 0) return;
  const auto kernel = [=] KERNEL() {
    T* const here = static_cast<T*>(shared_scratch());
    if (threadIdx.x == 0) copy_early(here, out.data);
    end_copies();
    await_copies<0>();
    arrive(met);
    await_arrivals(met, gridDim.x);
    const Words fresh = read_fresh_words(out.data);
    out.data[threadIdx.x] = here[threadIdx.x % 2] + T(fresh.word[threadIdx.x % 4]);
  };
  launch_together(dev, blocks, kBlockThreads, kernel, kScratchBytes);
}

template <class T>
void everything(Device& dev, const NativeopsCall* call) {
  const In<T, 3> x = input<T, 3>(call, 0), y = input<T, 3>(call, 1);
  const Out<T, 3> out = output<T, 3>(call, 0), d_x = output<T, 3>(call, 1);
  maps<T>(dev, x, out);
  if constexpr (sizeof(T) != 2) {  // these see 16-bit numbers as float
    products<T>(dev, x, y, out);
    teams<T>(dev, x, out);
    cuda_text<T>(dev, x, out);
    cuda_style<T>(dev, out, output<int64_t, 1>(call, 2));
    meetings<T>(dev, out, static_cast<unsigned*>(call->outputs[3].data));
  }
  tiles<T>(dev, x, out);
  matrix_products<T>(dev, x, y, out);
  dropout<T, int64_t>(dev, x, input<int64_t, 1>(call, 2), out, 0.5, 0);
  pairwise_l1<T>(dev, x, y, out);
  pairwise_l1_grad<T>(dev, x, y, out, d_x, d_x);
  pairwise_lp<T>(dev, x, y, out, 3.0);
  pairwise_lp_grad<T>(dev, x, y, out, out, d_x, d_x, 3.0);
}

}  // namespace nativeops

extern "C" int32_t every_shape(const NativeopsCall* call) {
  return nativeops::guard(call, [&](nativeops::Device& dev) {
    nativeops::everything<float>(dev, call);
    nativeops::everything<double>(dev, call);
    nativeops::everything<nativeops::bf16>(dev, call);
    nativeops::everything<nativeops::f16>(dev, call);
  });
}
