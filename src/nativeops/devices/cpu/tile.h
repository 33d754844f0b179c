// SPDX-License-Identifier: Apache-2.0
// for_each_tile on the CPU: one thread does a whole tile, each phase as a loop that vectorises.
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/cpu/block.h"
#include "nativeops/devices/view.h"

namespace nativeops {

constexpr int kTile = 32;

// One T for each element of the tile, in registers on CUDA: sum(r, c).
template <class T>
class PerThread {
 public:
  PerThread() = default;
  explicit PerThread(T init) {
    for (auto& row : values_) {
      for (T& value : row) value = init;
    }
  }
  T& operator()(int r, int c) { return values_[r][c]; }

 private:
  alignas(64) T values_[kTile][kTile];
};

// The tile of kTile x kTile elements that begins at (batch, row, col). It may reach beyond the
// view.
struct Block {
  int64_t batch, row, col;

  // f(r, c) for 0 <= r, c < kTile, in any order; between two calls that share data: sync(). All
  // that f calls is inlined, as a call that remains keeps the loop from vectors.
  template <class F>
  [[gnu::flatten]] void each(F f) const {
    for (int r = 0; r < kTile; ++r) {
      NATIVEOPS_IVDEP
      for (int c = 0; c < kTile; ++c) f(r, c);
    }
  }
  void sync() const {}
};

// f(block) for every tile of the last two axes of a view.
//   for_each_tile(dev, out, [=] KERNEL(Block block) { SHARED float t[kTile][kTile]; ... });
template <class T, class F>
void for_each_tile(Device& dev, View<T, 3> view, F f) {
  const int64_t rows = ceil_div(view.size(1), kTile), cols = ceil_div(view.size(2), kTile);
  dev.parallel(view.size(0) * rows * cols, [&](int64_t i) {
    f(Block{i / (rows * cols), i / cols % rows * kTile, i % cols * kTile});
  });
}

}  // namespace nativeops
