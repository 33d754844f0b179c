// SPDX-License-Identifier: Apache-2.0
// What a blocked kernel needs around its inner loop: parts of views, packed copies, scratch memory.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/cpu/halves.h"
#include "nativeops/devices/cpu/simd.h"
#include "nativeops/devices/cpu/transpose.h"
#include "nativeops/devices/cpu/work.h"
#include "nativeops/devices/view.h"

namespace nativeops::tuned {

// Rows [row, row + rows) and columns [col, col + cols) of a matrix, as far as it reaches.
template <class T>
View<T, 2> part(View<T, 2> all, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  return {all.data + row * all.stride(0) + col * all.stride(1),
          {std::min(rows, all.size(0) - row), std::min(cols, all.size(1) - col)},
          {all.stride(0), all.stride(1)}};
}

// `count` numbers, aligned: on the stack if they are few, so that a tiny call allocates nothing.
template <class A, int64_t kFew>
class Scratch {
 public:
  Scratch(Device& dev, int64_t count) {
    if (count > kFew) many_.emplace(dev.workspace<A>(count));
  }
  A* data() { return many_ ? many_->data() : few_; }

 private:
  alignas(64) A few_[kFew];
  std::optional<Workspace<A>> many_;
};

// Views come by reference here: copied to the stack, they would be loaded in one piece that no
// single store has written, and wait for all stores before (5 % of a pairwise gradient,
// benchmarks/NOTES.md).

// A block of a matrix, packed: its rows `width` numbers apart, zeros up to a whole vector.
template <class A, class T>
void pack_rows(const View<const T, 2>& from, A* to, int64_t width) {
  constexpr int64_t n = simd::kLanes<A>;
  const int64_t cols = from.size(1);
  for (int64_t r = 0; r < from.size(0); ++r) {
    for (int64_t c = 0; c < cols; c += n) {
      simd::store(to + r * width + c, simd::load(&from(r, 0) + c, cols - c));
    }
  }
}

// The same where the columns are what lies contiguous: square tiles, transposed in registers.
template <bool kWhole, class A, class T>
void pack_tile(const View<const T, 2>& from, int64_t r0, int64_t c0, A* to, int64_t width) {
  constexpr int n = simd::kLanes<A>;
  const int64_t height = from.size(0) - r0, columns = from.size(1) - c0;
  simd::Vec<A> tile[n];
  simd::unroll<n>([&](auto c) __attribute__((always_inline)) {
    if constexpr (kWhole && std::is_same_v<A, T>) {
      tile[c] = simd::load(&from(r0, c0 + c));
    } else {
      tile[c] = c < columns ? simd::load(&from(r0, c0 + c), height) : simd::zero<A>();
    }
  });
  simd::transpose(tile);
  simd::unroll<n>([&](auto r) __attribute__((always_inline)) {
    if (kWhole || r < height) simd::store(to + (r0 + r) * width + c0, tile[r]);
  });
}
template <class A, class T>
void pack_columns(const View<const T, 2>& from, A* to, int64_t width) {
  constexpr int64_t n = simd::kLanes<A>;
  for (int64_t r0 = 0; r0 < from.size(0); r0 += n) {
    for (int64_t c0 = 0; c0 < from.size(1); c0 += n) {
      const bool whole = r0 + n <= from.size(0) && c0 + n <= from.size(1);
      whole ? pack_tile<true>(from, r0, c0, to, width) : pack_tile<false>(from, r0, c0, to, width);
    }
  }
}

template <class A, class T>
void pack(const View<const T, 2>& from, A* to, int64_t width) {
  if (from.stride(1) == 1) return pack_rows(from, to, width);
  if (from.stride(0) == 1) return pack_columns(from, to, width);
  const int64_t padded = round_up(from.size(1), simd::kLanes<A>);
  for (int64_t r = 0; r < from.size(0); ++r) {
    for (int64_t c = 0; c < padded; ++c) {
      to[r * width + c] = c < from.size(1) ? static_cast<A>(from(r, c)) : A(0);
    }
  }
}

// A vector of numbers that lie `stride` apart, at most `count`; what is not loaded is 0.
template <class T>
simd::Vec<Accum<T>> load_apart(int64_t stride, const T* from, int64_t count) {
  constexpr int n = simd::kLanes<Accum<T>>;
  if (stride == 1) return simd::load(from, count);
  if (stride == 0 && count >= n) return simd::broadcast(Accum<T>(*from));  // the gradient of a sum
  alignas(64) Accum<T> lane[n] = {};
  for (int64_t i = 0; i < std::min<int64_t>(count, n); ++i) lane[i] = Accum<T>(from[i * stride]);
  return simd::load(lane);
}
// The same along the last axis.
template <class T, int N>
simd::Vec<Accum<T>> load_along(const View<const T, N>& row, const T* from, int64_t count) {
  return load_apart(row.stride(N - 1), from, count);
}
template <class T, int N>
void store_along(const View<T, N>& row, T* to, simd::Vec<Accum<T>> a, int64_t count) {
  constexpr int n = simd::kLanes<Accum<T>>;
  if constexpr (std::is_same_v<T, Accum<T>>) {
    if (row.stride(N - 1) == 1) return simd::store(to, a, count);
  }
  if constexpr (std::is_same_v<T, bf16>) {
    const bool whole = count >= simd::kLanes<float>;
    if (whole && row.stride(N - 1) == 1) return simd::store_halves(to, simd::to_bf16(a));
  }
  alignas(64) Accum<T> lane[n];
  simd::store(lane, a);
  for (int64_t i = 0; i < std::min<int64_t>(count, n); ++i) to[i * row.stride(N - 1)] = T(lane[i]);
}

// A row along the last axis of an array, looked up once for all its vectors; without memory, zeros.
template <class T>
struct Line {
  const T* data;
  int64_t stride;

  simd::Vec<Accum<T>> load(int64_t first, int64_t count) const {
    return data ? load_apart(stride, data + first * stride, count) : simd::zero<Accum<T>>();
  }
  // Into the first cache: what will soon be loaded, or stored to. Inlined as `fetch_rows` is.
  [[gnu::always_inline]] void fetch(int64_t first, int64_t count) const {
    if (data == nullptr || stride != 1) return;
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(data + first + i);
  }
};

// Unpacked again, in the type and the layout of the result.
template <class A, class T>
void unpack(const A* from, int64_t width, View<T, 2> to) {
  for (int64_t r = 0; r < to.size(0); ++r) {
    if (to.stride(1) == 1) {
      T* row = &to(r, 0);
      for (int64_t c = 0; c < to.size(1); ++c) row[c] = static_cast<T>(from[r * width + c]);
    } else {
      for (int64_t c = 0; c < to.size(1); ++c) to(r, c) = static_cast<T>(from[r * width + c]);
    }
  }
}

}  // namespace nativeops::tuned
