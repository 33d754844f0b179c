// SPDX-License-Identifier: Apache-2.0
// Products of matrices on the CPU, after Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication" (2008): each thread computes tiles of the result, a block of it at a time in
// registers, from copies of both matrices in the order in which they are read. An element is summed
// up in the order of k, whatever the number of threads; no BLAS promises that
// (docs/decisions/008).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "nativeops/devices/cpu/matrix_blocks.h"
#include "nativeops/devices/cpu/matrix_rows.h"
#include "nativeops/devices/cpu/progress.h"
#if NATIVEOPS_LEVEL >= 3
#include "nativeops/devices/cpu/matrix_tiles.h"
#endif
#include "nativeops/devices/product.h"

namespace nativeops::matrix_product {

// Which parts of tiles have been copied. The thread that needs one first copies it, just before it
// is read, so that nobody meets between copies and products.
class Copies {
 public:
  Copies(int64_t tiles, int64_t parts) : parts_(parts), state_(tiles * parts) {}

  void forget(int64_t tile, int64_t count) {
    for (int64_t i = tile * parts_; i < (tile + count) * parts_; ++i) {
      state_[i].store(kNone, std::memory_order_relaxed);
    }
  }
  // Returns when a part is there. Who finds another thread copying it copies the ones behind it.
  template <class F>
  void need(int64_t tile, int64_t part, F&& copy) {
    std::atomic<char>* const states = state_.data() + tile * parts_;
    const auto is_there = [&] { return states[part].load(std::memory_order_acquire) == kThere; };
    for (int64_t next = part; next < parts_ && !is_there(); ++next) {
      char none = kNone;
      if (!states[next].compare_exchange_strong(none, kTaken, std::memory_order_relaxed)) continue;
      copy(next);
      states[next].store(kThere, std::memory_order_release);
    }
    tuned::wait_until(is_there);
  }

 private:
  enum : char { kNone, kTaken, kThere };

  const int64_t parts_;
  std::vector<std::atomic<char>> state_;
};

// What is copied at a time is bounded: a copy of a matrix that fills the memory would not fit
// beside it.
template <class Of>
class Tiles {
  using A = typename Of::Number;
  static constexpr int64_t kMost = int64_t{1} << 22;  // words of each matrix, or those of a tile

 public:
  Tiles(Device& dev, const Matrix& a, const Matrix& b, const Matrix& c, Scaled<A> scaled)
      : a_(a),
        b_(b),
        c_(c),
        scaled_(scaled),
        depth_(Of::words(a.size[1])),
        down_(ceil_div(c.size[0], Of::kTileRows)),
        across_(ceil_div(c.size[1], Of::kTileColumns)),
        left_size_(Of::room(ceil_div(c.size[0], down_)) * depth_),
        right_size_(std::min(Of::kTileColumns, round_up(c.size[1], kLanes<A>)) * depth_),
        down_at_once_(std::clamp<int64_t>(kMost / left_size_, 1, down_)),
        across_at_once_(std::clamp<int64_t>(kMost / right_size_, 1, across_)),
        copies_(down_at_once_ + across_at_once_, ceil_div(depth_, Of::kDepth)),
        left_(dev.workspace<A>(down_at_once_ * left_size_)),
        right_(dev.workspace<A>(across_at_once_ * right_size_)) {}

  void run(Device& dev) {
    for (int64_t i = 0; i < down_; i += down_at_once_) {
      const int64_t down = std::min(down_at_once_, down_ - i);
      copies_.forget(0, down_at_once_);
      for (int64_t j = 0; j < across_; j += across_at_once_) {
        const int64_t across = std::min(across_at_once_, across_ - j);
        if (across < across_) copies_.forget(down_at_once_, across);
        const int64_t sums = down * Of::kTileRows * across * Of::kTileColumns;
        parallel_if_large(dev, down * across, sums * depth_ / kLanes<A>, [&](int64_t task) {
          // Threads, which begin with different columns, begin with different rows.
          const int64_t column = task / down, row = (task + column * down / across) % down;
          tile(i, row, j, column);
        });
      }
    }
  }

 private:
  Range rows(int64_t i) const { return part_of(c_.size[0], i, down_); }
  Range columns(int64_t j) const {
    return {j * Of::kTileColumns, std::min((j + 1) * Of::kTileColumns, c_.size[1])};
  }

  // The tile in row i + down and column j + across of tiles.
  void tile(int64_t i, int64_t down, int64_t j, int64_t across) {
    alignas(64) A sums[Of::kTileRows * Of::kTileColumns];
    [[maybe_unused]] const typename Of::Thread thread;
    const Range row = rows(i + down), column = columns(j + across);
    const auto left = [&](int64_t part) {
      return left_.data() + down * left_size_ + Of::room(row.count()) * part * Of::kDepth;
    };
    const auto right = [&](int64_t part) {
      return right_.data() + across * right_size_ +
             round_up(column.count(), kLanes<A>) * part * Of::kDepth;
    };
    for (int64_t p = 0; p * Of::kDepth < depth_; ++p) {
      copies_.need(down, p, [&](int64_t q) { Of::copy_left(a_, row, words(q), left(q)); });
      copies_.need(down_at_once_ + across, p,
                   [&](int64_t q) { Of::copy_right(b_, column, words(q), right(q)); });
      Of::multiply(left(p), right(p), words(p).count(), row.count(), column.count(), sums, p == 0);
    }
    put(c_, row, column, sums, Of::kTileColumns, scaled_);
  }
  Range words(int64_t part) const {
    return {part * Of::kDepth, std::min((part + 1) * Of::kDepth, depth_)};
  }

  const Matrix a_, b_, c_;
  const Scaled<A> scaled_;
  const int64_t depth_, down_, across_, left_size_, right_size_, down_at_once_, across_at_once_;
  Copies copies_;  // of the left matrix, then of the right one
  const Workspace<A> left_, right_;
};

// Whether cᵀ = bᵀ·aᵀ is the better way to say it: rows of the result should lie in one piece, or
// be the few.
template <class A>
bool better_transposed(const Matrix& c) {
  const int64_t rows = c.size[0], columns = c.size[1];
  if (std::min(rows, columns) < Blocks<A, Numbers>::kColumns) return columns < rows;
  return c.stride[1] != 1 && c.stride[0] == 1;
}

// By words of a kind, and by blocks of them where rows are not few.
template <class Of, class Large, class A>
void multiply_as(Device& dev, const Matrix& a, const Matrix& b, const Matrix& c, Scaled<A> scaled) {
#if NATIVEOPS_LEVEL > 0
  if (c.size[0] <= kFewRows && lies_ready<A, Of>(b)) {
    return multiply_few_rows<Of>(dev, a, b, c, scaled);
  }
#endif
  Tiles<Large>(dev, a, b, c, scaled).run(dev);
}

#if NATIVEOPS_LEVEL >= 2
inline bool multiplies_bf16(const Matrix& a, const Matrix& b) {
  const auto is_bf16 = [](const Matrix& m) { return m.dtype.code == kNativeopsBfloat; };
  return is_bf16(a) && is_bf16(b) && (NATIVEOPS_LEVEL >= 3 || simd::has_pairs());
}
#if NATIVEOPS_LEVEL >= 3
using BlocksOfBf16 = BlocksOfTiles;
#else
using BlocksOfBf16 = Blocks<float, tuned::Pairs>;
#endif
#endif

template <class A>
void multiply(Device& dev, Matrix a, Matrix b, Matrix c, Scaled<A> scaled) {
  if (better_transposed<A>(c)) {
    std::swap(a, b);
    a = transpose(a), b = transpose(b), c = transpose(c);
  }
#if NATIVEOPS_LEVEL >= 2
  if constexpr (std::is_same_v<A, float>) {
    if (multiplies_bf16(a, b)) return multiply_as<tuned::Pairs, BlocksOfBf16>(dev, a, b, c, scaled);
  }
#endif
  multiply_as<Numbers, Blocks<A, Numbers>>(dev, a, b, c, scaled);
}

// Each product by all threads where it is large, else some products by each.
template <class A>
void multiply_batch(Device& dev, const NativeopsProduct& product) {
  const Scaled<A> scaled{{}, static_cast<A>(product.alpha), static_cast<A>(product.beta)};
  const int64_t products = product.c.size[0];
  const int64_t steps =
      product.c.size[1] * product.c.size[2] * std::max<int64_t>(1, product.a.size[2] / kLanes<A>);
  const auto one = [&](int64_t i) {
    multiply<A>(dev, matrix(product.a, i), matrix(product.b, i), matrix(product.c, i), scaled);
  };
  if (!worth_sharing(dev, steps)) return parallel_if_large(dev, products, products * steps, one);
  for (int64_t i = 0; i < products; ++i) one(i);
}

// NativeopsServices.multiply
inline int32_t multiply_any(const NativeopsServices* services, const NativeopsCall* call,
                            const NativeopsProduct* product) {
  Device dev{services, call};
  try {
    product->c.dtype.bits == 64 ? multiply_batch<double>(dev, *product)
                                : multiply_batch<float>(dev, *product);
    return kNativeopsOk;
  } catch (const std::bad_alloc&) {
    return kNativeopsNoMemory;
  }
}

}  // namespace nativeops::matrix_product
