// SPDX-License-Identifier: Apache-2.0
// Small kernels for the debug device: each is right, or with `planted` has one bug of the kind that
// its name says. ThreadSanitizer reports the races; the barriers report their own misuse.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "harness.h"
#include "nativeops/ops/pairwise_l1.h"
#include "nativeops/ops/pairwise_lp.h"

namespace nativeops {

using harness::Array;

static float numbers[1024];
static int counts[16];

static void missing_barrier(Device& dev, bool planted) {
  for_each_item(dev, 2, [=] KERNEL(Team team, int64_t) {
    SHARED float row[100];
    team.each(0, 100, [&](int64_t i) { row[i] = static_cast<float>(i); });
    if (!planted) team.sync();
    team.each(0, 100, [&](int64_t i) { numbers[i] = row[99 - i]; });
  });
}

// The next pass overwrites what slower threads still read.
static void missing_barrier_before_reuse(Device& dev, bool planted) {
  launch(dev, 1, 64, [=] KERNEL() {
    SHARED float value;
    for (int pass = 0; pass < 3; ++pass) {
      if (threadIdx.x == 0) value = static_cast<float>(pass);
      __syncthreads();
      numbers[threadIdx.x] = value;
      if (!planted) __syncthreads();
    }
  });
}

static void missing_barrier_in_tile(Device& dev, bool planted) {
  const View<float, 3> out = dense(numbers, 1, 20, 20);
  for_each_tile(dev, out, [=] KERNEL(Block block) {
    SHARED float tile[kTile][kTile + 1];
    block.each([&](int r, int c) { tile[r][c] = static_cast<float>(r * c); });
    if (!planted) block.sync();
    block.each([&](int r, int c) {
      const int64_t i = block.row + r, j = block.col + c;
      if (i < out.size(1) && j < out.size(2)) out(0, i, j) = tile[c][r];
    });
  });
}

// Threads of one warp need an order, too.
static void warp_without_barrier(Device& dev, bool planted) {
  launch(dev, 1, 32, [=] KERNEL() {
    SHARED float part[32];
    part[threadIdx.x] = 1;
    for (unsigned step = 16; step > 0; step /= 2) {
      if (!planted) sync();
      const float other = threadIdx.x < step ? part[threadIdx.x + step] : 0;
      if (!planted) sync();
      part[threadIdx.x] += other;
    }
    if (threadIdx.x == 0) numbers[0] = part[0];
  });
}

static void race_on_shared_value(Device& dev, bool planted) {
  launch(dev, 1, 64, [=] KERNEL() {
    SHARED unsigned last;
    if (planted || threadIdx.x == 63) last = threadIdx.x;
    sync();
    if (threadIdx.x == 0) numbers[0] = static_cast<float>(last);
  });
}

static void histogram_without_atomics(Device& dev, bool planted) {
  launch(dev, 2, 64, [=] KERNEL() {
    for (int64_t i : range(500)) {
      if (planted) {
        counts[i % 16] += 1;
      } else {
        atomicAdd(&counts[i % 16], 1);
      }
    }
  });
}

static void divergent_barrier(Device& dev, bool planted) {
  launch(dev, 2, 64, [=] KERNEL() {
    if (planted && threadIdx.x < 5) {
      sync();
    } else {
      sync();
    }
  });
}

static void divergent_barrier_of_team(Device& dev, bool planted) {
  for_each_item(dev, 1, [=] KERNEL(Team team, int64_t) {
    if (planted && team.rank() % 2) {
      team.sync();
    } else {
      team.sync();
    }
  });
}

static void barrier_not_reached_by_all(Device& dev, bool planted) {
  launch(dev, 1, 64, [=] KERNEL() {
    if (planted && threadIdx.x == 40) return;
    __syncthreads();
  });
}

static void warp_reduction_not_reached_by_all(Device& dev, bool planted) {
  launch(dev, 1, 64, [=] KERNEL() {
    float sum = 1;
    if (!planted || threadIdx.x % 32 < 16) sum = warp_sum(sum);
    sync();
    if (threadIdx.x == 0) numbers[0] = sum;
  });
}

static void every_loop_shape(Device& dev, bool) {
  Array<float> x(2, 19, 21), y(2, 21, 35), out(2, 19, 35);
  const View<float, 3> o = out.view;
  for_each(dev, o, [=] KERNEL(int64_t b, int64_t i, int64_t j) { o(b, i, j) = tanh(o(b, i, j)); });
  contract(dev, o, x.in(), y.in(), [] KERNEL(float a, float c) { return a * c; });
  contract(dev, o, x.in(), y.in(), o, [] KERNEL(float a, float c, float s) { return a * c + s; });
  for_each_item<float>(dev, 4, 200, [=] KERNEL(Team team, int64_t n, View<float, 1> s) {
    team.each(0, 200, [&](int64_t i) { s(i) = static_cast<float>(i); });
    const float sum = team.sum(0, 200, [&](int64_t i) { return s(199 - i); });
    team.each(0, 200, [&](int64_t i) { s(i) = sum; });
    const bool any = team.any(0, 200, [&](int64_t i) { return s(199 - i) > 0; });
    const float least = team.min(0, 200, [&](int64_t i) { return s(i); });
    team.each(0, 1, [&](int64_t) { numbers[n] = any ? least : team.size(); });
  });
  launch(dev, 2, Dim3(16, 4), [=] KERNEL() {
    const float sum = block_sum(1.0f) + block_max(2.0f) + warp_sum(1.0f) + warp_max(1.0f);
    if (threadIdx.x + threadIdx.y == 0) numbers[blockIdx.x] = sum;
  });
}

static void pairwise_ops(Device& dev, bool) {
  Array<float> x(1, 9, 7), y(1, 11, 7), out(1, 9, 11), d_x(1, 9, 7), d_y(1, 11, 7);
  pairwise_l1<float>(dev, x.in(), y.in(), out.view);
  pairwise_l1_grad<float>(dev, x.in(), y.in(), out.in(), d_x.view, d_y.view);
  for (double p : {2.0, 3.0, double{INFINITY}}) {
    pairwise_lp<float>(dev, x.in(), y.in(), out.view, p);
    pairwise_lp_grad<float>(dev, x.in(), y.in(), out.in(), out.in(), d_x.view, d_y.view, p);
  }
}

struct Named {
  const char* name;
  void (*run)(Device&, bool);
};
#define NAMED(kernel) {#kernel, kernel}
static const Named kKernels[] = {NAMED(missing_barrier),
                                 NAMED(missing_barrier_before_reuse),
                                 NAMED(missing_barrier_in_tile),
                                 NAMED(warp_without_barrier),
                                 NAMED(race_on_shared_value),
                                 NAMED(histogram_without_atomics),
                                 NAMED(divergent_barrier),
                                 NAMED(divergent_barrier_of_team),
                                 NAMED(barrier_not_reached_by_all),
                                 NAMED(warp_reduction_not_reached_by_all),
                                 NAMED(every_loop_shape),
                                 NAMED(pairwise_ops)};

}  // namespace nativeops

// races KERNEL [planted]: 0 if all went well, 3 if the device reported misuse of a barrier.
int main(int argc, char** argv) {
  nativeops::Device dev{&harness::kSerial};
  for (const auto& kernel : nativeops::kKernels) {
    if (argc < 2 || std::strcmp(kernel.name, argv[1]) != 0) continue;
    try {
      kernel.run(dev, argc > 2);
      return 0;
    } catch (const std::runtime_error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 3;
    }
  }
  return 2;
}
