// SPDX-License-Identifier: Apache-2.0
// gemm on the CPU, with panels packed as in panels.h. The sum of an element is taken in the order
// of k, whatever the number of threads; no BLAS promises that (docs/decisions/008).
#pragma once
#include "nativeops/devices/cpu/block.h"
#include "nativeops/devices/product.h"
#if NATIVEOPS_LEVEL > 0
#include "nativeops/devices/cpu/panels.h"
#endif

namespace nativeops::matrix_product {

#if NATIVEOPS_LEVEL > 0
// One product: both matrices are packed, the left one only where it must be, then each thread
// computes tiles that stay in its caches.
template <class Ta, class Tb, class T>
class Packed {
  using A = Accum<T>;
  static constexpr int n = simd::kLanes<A>;
  static constexpr int64_t kWidth = tuned::kWidest * n;         // columns of a panel
  static constexpr int64_t kHeight = 96;                        // rows of a tile
  static constexpr int64_t kDepth = 1024 / int64_t{sizeof(A)};  // of a part in the second cache

 public:
  Packed(Device& dev, In<Ta, 2> a, In<Tb, 2> b, Out<T, 2> c, Scaled<A> scaled)
      : a_(a),
        b_(b),
        c_(c),
        scaled_(scaled),
        panels_(tuned::ceil_div(c.size(1), kWidth)),
        row_width_(tuned::round_up(depth(), n)),
        direct_(std::is_same_v<Ta, A> && a.stride(1) == 1),
        right_(dev.workspace<A>(tuned::round_up(c.size(1), n) * depth())),
        left_(dev.workspace<A>(direct_ ? 0 : a.size(0) * row_width_)) {}

  void run(Device& dev) {
    const int64_t tiles = tuned::ceil_div(c_.size(0), kHeight);
    tuned::parallel_if_large(dev, panels_, depth() * c_.size(1) / n, [&](int64_t p) {
      tuned::pack(tuned::part(b_, 0, depth(), p * kWidth, kWidth), panel(p), width(p));
    });
    const int64_t left_steps = direct_ ? 0 : c_.size(0) * row_width_ / n;
    tuned::parallel_if_large(dev, direct_ ? 0 : tiles, left_steps, [&](int64_t i) {
      tuned::pack(tuned::part(a_, i * kHeight, kHeight, 0, depth()),
                  left_.data() + i * kHeight * row_width_, row_width_);
    });
    const int64_t steps = c_.size(0) * panels_ * tuned::kWidest * depth();
    tuned::parallel_if_large(dev, tiles * panels_, steps,
                             [&](int64_t task) { tile(task / tiles, task % tiles * kHeight); });
  }

 private:
  int64_t depth() const { return a_.size(1); }
  int64_t columns(int64_t p) const { return std::min(kWidth, c_.size(1) - p * kWidth); }
  int64_t width(int64_t p) const { return tuned::round_up(columns(p), n); }
  A* panel(int64_t p) const { return right_.data() + p * kWidth * depth(); }

  const A* row(int64_t i) const {
    if constexpr (std::is_same_v<Ta, A>) {
      if (direct_) return &a_(i, 0);
    }
    return left_.data() + i * row_width_;
  }

  void tile(int64_t p, int64_t first) const {
    alignas(64) A sums[kHeight * kWidth];
    const int64_t rows = std::min(kHeight, c_.size(0) - first), wide = width(p);
    const A* row_of[kHeight];
    for (int64_t r = 0; r < rows; ++r) row_of[r] = row(first + r);
    std::fill_n(sums, rows * wide, A(0));
    for (int64_t k = 0; k < depth(); k += kDepth) {
      tuned::multiply(static_cast<int>(wide / n), row_of, rows, k, std::min(kDepth, depth() - k),
                      panel(p) + k * wide, sums, wide, sums, wide);
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < columns(p); ++j) {
        T& to = c_(first + r, p * kWidth + j);
        to = T(scaled_.finish(sums[r * wide + j], A(to)));
      }
    }
  }

  const In<Ta, 2> a_;
  const In<Tb, 2> b_;
  const Out<T, 2> c_;
  const Scaled<A> scaled_;
  const int64_t panels_, row_width_;
  const bool direct_;
  const Workspace<A> right_, left_;
};
#endif

template <class Ta, class Tb, class T>
void multiply(Device& dev, In<Ta, 3> a, In<Tb, 3> b, Out<T, 3> c, Scaled<Accum<T>> scaled) {
#if NATIVEOPS_LEVEL > 0
  for (int64_t i = 0; i < c.size(0); ++i) {
    Packed<Ta, Tb, T>(dev, at(a, i), at(b, i), at(c, i), scaled).run(dev);
  }
#else
  by_contract(dev, a, b, c, scaled);
#endif
}

}  // namespace nativeops::matrix_product
