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
// The matrices of a product whose numbers are summed up as A. Their own types are behind pointers
// to the few functions that see them: with a class for each choice of types, a kernel with a few
// products would take ten seconds longer to compile.
template <class A>
struct Factor {
  const void* data;
  int64_t size[2], stride[2];
  bool lies_ready;  // rows of A from end to end
  void (*pack)(const Factor& from, int64_t row, int64_t rows, int64_t col, int64_t cols, A* to,
               int64_t width);
};
template <class A>
struct Product {
  void* data;
  int64_t size[2], stride[2];
  Scaled<A> scaled;
  void (*finish)(const Product& to, int64_t row, int64_t rows, int64_t col, const A* sums,
                 int64_t width);
};

template <class A, class T>
Factor<A> factor(In<T, 2> m) {
  return {m.data,
          {m.size(0), m.size(1)},
          {m.stride(0), m.stride(1)},
          std::is_same_v<T, A> && m.stride(1) == 1,
          [](const Factor<A>& from, int64_t row, int64_t rows, int64_t col, int64_t cols, A* to,
             int64_t width) {
            const In<T, 2> all{static_cast<const T*>(from.data),
                               {from.size[0], from.size[1]},
                               {from.stride[0], from.stride[1]}};
            tuned::pack(tuned::part(all, row, rows, col, cols), to, width);
          }};
}

// A row of sums to its place; constants make vectors of it.
template <class A, class T, class Stride, class Count>
void finish_row(const A* __restrict sum, T* __restrict to, Stride stride, Count count,
                Scaled<A> scaled) {
  for (int64_t j = 0; j < count; ++j) {
    to[j * stride] = T(scaled.finish(sum[j], A(to[j * stride])));
  }
}

template <class A, class T>
Product<A> product(Out<T, 2> m, Scaled<A> scaled) {
  return {m.data,
          {m.size(0), m.size(1)},
          {m.stride(0), m.stride(1)},
          scaled,
          [](const Product<A>& to, int64_t row, int64_t rows, int64_t col, const A* sums,
             int64_t width) {
            constexpr std::integral_constant<int64_t, tuned::kWidest * simd::kLanes<A>> whole;
            const int64_t cols = std::min<int64_t>(whole, to.size[1] - col);
            for (int64_t r = 0; r < rows; ++r, sums += width) {
              T* at = static_cast<T*>(to.data) + (row + r) * to.stride[0] + col * to.stride[1];
              if (to.stride[1] == 1 && cols == whole) {
                finish_row(sums, at, std::integral_constant<int64_t, 1>(), whole, to.scaled);
              } else {
                finish_row(sums, at, to.stride[1], cols, to.scaled);
              }
            }
          }};
}

// One product: both matrices are packed, the left one only where it must be, then each thread
// computes tiles that stay in its caches. What is packed at a time is bounded: a copy of a matrix
// that fills the memory would not fit beside it.
template <class A>
class Packed {
  static constexpr int n = simd::kLanes<A>;
  static constexpr int64_t kWidth = tuned::kWidest * n;         // columns of a panel
  static constexpr int64_t kHeight = 96;                        // rows of a tile
  static constexpr int64_t kDepth = 1024 / int64_t{sizeof(A)};  // of a part in the second cache
  static constexpr int64_t kPacked = int64_t{1} << 23;  // elements of each matrix, or a panel

 public:
  Packed(Device& dev, const Factor<A>& a, const Factor<A>& b, const Product<A>& c)
      : a_(a),
        b_(b),
        c_(c),
        row_width_(tuned::round_up(depth(), n)),
        tiles_(tuned::ceil_div(c.size[0], kHeight)),
        panels_(tuned::ceil_div(c.size[1], kWidth)),
        tiles_packed_(a.lies_ready ? tiles_ : at_once(tiles_, kHeight * row_width_)),
        panels_packed_(at_once(panels_, kWidth * depth())),
        right_(dev.workspace<A>(std::min(panels_packed_ * kWidth, tuned::round_up(c.size[1], n)) *
                                depth())),
        left_(dev.workspace<A>(
            a.lies_ready ? 0 : std::min(tiles_packed_ * kHeight, c.size[0]) * row_width_)) {}

  void run(Device& dev) {
    for (int64_t i = 0; i < tiles_; i += tiles_packed_) {
      const int64_t tiles = std::min(tiles_packed_, tiles_ - i);
      if (!a_.lies_ready) pack_left(dev, i, tiles);
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

  int64_t depth() const { return a_.size[1]; }
  int64_t width(int64_t p) const {
    return tuned::round_up(std::min(kWidth, c_.size[1] - p * kWidth), n);
  }
  // Where panels and rows lie, counted among those that are packed.
  A* panel(int64_t place) const { return right_.data() + place * kWidth * depth(); }
  A* left(int64_t place) const { return left_.data() + place * kHeight * row_width_; }

  void pack_right(Device& dev, int64_t first, int64_t panels) {
    const int64_t steps = panels * kWidth * depth() / n;
    tuned::parallel_if_large(dev, panels, steps, [&](int64_t place) {
      const int64_t p = first + place;
      b_.pack(b_, 0, depth(), p * kWidth, kWidth, panel(place), width(p));
    });
  }

  void pack_left(Device& dev, int64_t first, int64_t tiles) {
    const int64_t steps = tiles * kHeight * row_width_ / n;
    tuned::parallel_if_large(dev, tiles, steps, [&](int64_t place) {
      const int64_t i = (first + place) * kHeight;
      a_.pack(a_, i, kHeight, 0, depth(), left(place), row_width_);
    });
  }

  // Row r of tile i, which is packed at a place.
  const A* row(int64_t i, int64_t place, int64_t r) const {
    if (!a_.lies_ready) return left(place) + r * row_width_;
    return static_cast<const A*>(a_.data) + (i * kHeight + r) * a_.stride[0];
  }

  void tile(int64_t i, int64_t left_place, int64_t p, int64_t panel_place) const {
    alignas(64) A sums[kHeight * kWidth];
    const int64_t first = i * kHeight, wide = width(p);
    const int64_t rows = std::min(kHeight, c_.size[0] - first);
    const A* row_of[kHeight];
    for (int64_t r = 0; r < rows; ++r) row_of[r] = row(i, left_place, r);
    std::fill_n(sums, rows * wide, A(0));
    for (int64_t k = 0; k < depth(); k += kDepth) {
      tuned::multiply(static_cast<int>(wide / n), row_of, rows, k, std::min(kDepth, depth() - k),
                      panel(panel_place) + k * wide, sums, wide, sums, wide, c_.size[0] == 1);
    }
    c_.finish(c_, first, rows, p * kWidth, sums, wide);
  }

  const Factor<A> a_, b_;
  const Product<A> c_;
  const int64_t row_width_;
  const int64_t tiles_, panels_, tiles_packed_, panels_packed_;
  const Workspace<A> right_, left_;
};
#endif

template <class Ta, class Tb, class T>
void multiply(Device& dev, In<Ta, 3> a, In<Tb, 3> b, Out<T, 3> c, Scaled<Accum<T>> scaled) {
#if NATIVEOPS_LEVEL > 0
  using A = Accum<T>;
  for (int64_t i = 0; i < c.size(0); ++i) {
    Packed<A>(dev, factor<A>(at(a, i)), factor<A>(at(b, i)), product(at(c, i), scaled)).run(dev);
  }
#else
  by_contract(dev, a, b, c, scaled);
#endif
}

}  // namespace nativeops::matrix_product
