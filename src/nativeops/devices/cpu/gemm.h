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
// computes tiles that stay in its caches. What is packed at a time is bounded: a copy of a matrix
// that fills the memory would not fit beside it.
template <class Ta, class Tb, class T>
class Packed {
  using A = Accum<T>;
  static constexpr int n = simd::kLanes<A>;
  static constexpr int64_t kWidth = tuned::kWidest * n;         // columns of a panel
  static constexpr int64_t kHeight = 96;                        // rows of a tile
  static constexpr int64_t kDepth = 1024 / int64_t{sizeof(A)};  // of a part in the second cache
  static constexpr int64_t kPacked = int64_t{1} << 23;  // elements of each matrix, or a panel

 public:
  Packed(Device& dev, In<Ta, 2> a, In<Tb, 2> b, Out<T, 2> c, Scaled<A> scaled)
      : a_(a),
        b_(b),
        c_(c),
        scaled_(scaled),
        row_width_(tuned::round_up(depth(), n)),
        direct_(std::is_same_v<Ta, A> && a.stride(1) == 1),
        tiles_(tuned::ceil_div(c.size(0), kHeight)),
        panels_(tuned::ceil_div(c.size(1), kWidth)),
        tiles_packed_(direct_ ? tiles_ : at_once(tiles_, kHeight * row_width_)),
        panels_packed_(at_once(panels_, kWidth * depth())),
        right_(dev.workspace<A>(std::min(panels_packed_ * kWidth, tuned::round_up(c.size(1), n)) *
                                depth())),
        left_(dev.workspace<A>(
            direct_ ? 0 : std::min(tiles_packed_ * kHeight, c.size(0)) * row_width_)) {}

  void run(Device& dev) {
    for (int64_t i = 0; i < tiles_; i += tiles_packed_) {
      const int64_t tiles = std::min(tiles_packed_, tiles_ - i);
      if (!direct_) pack_left(dev, i, tiles);
      for (int64_t p = 0; p < panels_; p += panels_packed_) {
        const int64_t panels = std::min(panels_packed_, panels_ - p);
        if (i == 0 || panels < panels_) pack_right(dev, p, panels);
        const int64_t steps = tiles * kHeight * panels * tuned::kWidest * depth();
        tuned::parallel_if_large(dev, tiles * panels, steps, [&](int64_t task) {
          tile(i + task % tiles, task % tiles, p + task / tiles, task / tiles);
        });
      }
    }
  }

 private:
  static int64_t at_once(int64_t parts, int64_t size) {
    return std::min(parts, std::max<int64_t>(1, kPacked / std::max<int64_t>(1, size)));
  }

  int64_t depth() const { return a_.size(1); }
  int64_t columns(int64_t p) const { return std::min(kWidth, c_.size(1) - p * kWidth); }
  int64_t width(int64_t p) const { return tuned::round_up(columns(p), n); }
  // Where panels and rows lie, counted among those that are packed.
  A* panel(int64_t place) const { return right_.data() + place * kWidth * depth(); }
  A* left(int64_t place) const { return left_.data() + place * kHeight * row_width_; }

  void pack_right(Device& dev, int64_t first, int64_t panels) {
    const int64_t steps = panels * kWidth * depth() / n;
    tuned::parallel_if_large(dev, panels, steps, [&](int64_t place) {
      const int64_t p = first + place;
      tuned::pack(tuned::part(b_, 0, depth(), p * kWidth, kWidth), panel(place), width(p));
    });
  }

  void pack_left(Device& dev, int64_t first, int64_t tiles) {
    const int64_t steps = tiles * kHeight * row_width_ / n;
    tuned::parallel_if_large(dev, tiles, steps, [&](int64_t place) {
      const int64_t i = (first + place) * kHeight;
      tuned::pack(tuned::part(a_, i, kHeight, 0, depth()), left(place), row_width_);
    });
  }

  // Row r of tile i, which is packed at a place.
  const A* row(int64_t i, int64_t place, int64_t r) const {
    if constexpr (std::is_same_v<Ta, A>) {
      if (direct_) return &a_(i * kHeight + r, 0);
    }
    return left(place) + r * row_width_;
  }

  void tile(int64_t i, int64_t left_place, int64_t p, int64_t panel_place) const {
    alignas(64) A sums[kHeight * kWidth];
    const int64_t first = i * kHeight, wide = width(p);
    const int64_t rows = std::min(kHeight, c_.size(0) - first);
    const A* row_of[kHeight];
    for (int64_t r = 0; r < rows; ++r) row_of[r] = row(i, left_place, r);
    std::fill_n(sums, rows * wide, A(0));
    for (int64_t k = 0; k < depth(); k += kDepth) {
      tuned::multiply(static_cast<int>(wide / n), row_of, rows, k, std::min(kDepth, depth() - k),
                      panel(panel_place) + k * wide, sums, wide, sums, wide, c_.size(0) == 1);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const A* sum = sums + r * wide;
      T* to = &c_(first + r, p * kWidth);
      if (c_.stride(1) == 1 && columns(p) == kWidth) {
        finish(sum, to, std::integral_constant<int64_t, 1>());
      } else {
        finish(sum, to, c_.stride(1), columns(p));
      }
    }
  }
  // A row of a tile to its place; constants make vectors of it.
  template <class Stride, class Count = std::integral_constant<int64_t, kWidth>>
  void finish(const A* __restrict sum, T* __restrict to, Stride stride, Count count = {}) const {
    for (int64_t j = 0; j < count; ++j) {
      to[j * stride] = T(scaled_.finish(sum[j], A(to[j * stride])));
    }
  }

  const In<Ta, 2> a_;
  const In<Tb, 2> b_;
  const Out<T, 2> c_;
  const Scaled<A> scaled_;
  const int64_t row_width_;
  const bool direct_;
  const int64_t tiles_, panels_, tiles_packed_, panels_packed_;
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
