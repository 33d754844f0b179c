// SPDX-License-Identifier: Apache-2.0
// for_each_tile with many threads: kTile x kTileThreads of them share a tile.
#pragma once
#include <cstdint>

#include "nativeops/devices/blocks/reduce.h"
#include "nativeops/devices/view.h"

namespace nativeops {

// One T for each element of the tile, in the registers of the thread that owns it: sum(r, c).
template <class T>
class PerThread {
 public:
  PerThread() = default;
  KERNEL explicit PerThread(T init) {
    for (T& value : values_) value = init;
  }
  KERNEL T& operator()(int r, int) { return values_[r / kTileThreads]; }

 private:
  T values_[kTile / kTileThreads];
};

// The tile of kTile x kTile elements that begins at (batch, row, col). It may reach beyond the
// view.
struct Block {
  int64_t batch, row, col;

  // f(r, c) for 0 <= r, c < kTile, in any order; between two calls that share data: sync().
  template <class F>
  KERNEL void each(F f) const {
    const int first = static_cast<int>(threadIdx.y), c = static_cast<int>(threadIdx.x);
    NATIVEOPS_UNROLL
    for (int r = 0; r < kTile; r += kTileThreads) f(r + first, c);
  }
#if defined(NATIVEOPS_CPU_THREADS)
  void sync(const char* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    nativeops::sync(file, line);
  }
#else
  KERNEL void sync() const { nativeops::sync(); }
#endif
};

template <class F>
struct TileKernel {
  F f;
  int64_t rows, cols, tiles;

  KERNEL void operator()() const {
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
      f(Block{i / (rows * cols), i / cols % rows * kTile, i % cols * kTile});
      sync();  // the next tile uses the same shared memory
    }
  }
};

// f(block) for every tile of the last two axes of a view.
template <class T, class F>
void for_each_tile(Device& dev, View<T, 3> view, F f) {
  const int64_t rows = ceil_div(view.size(1), kTile), cols = ceil_div(view.size(2), kTile);
  const TileKernel<F> kernel{f, rows, cols, view.size(0) * rows * cols};
  const unsigned grid = static_cast<unsigned>(min2(kernel.tiles, kMaxGrid));
  launch(dev, grid, Dim3(kTile, kTileThreads), kernel);
}

}  // namespace nativeops
