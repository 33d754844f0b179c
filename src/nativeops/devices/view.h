// SPDX-License-Identifier: Apache-2.0
// Views: arrays indexed by their axes in order, x(batch, time, feature). They own nothing.
#pragma once
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define KERNEL __device__
#define HOST_DEVICE __host__ __device__
#else
#define KERNEL
#define HOST_DEVICE
#endif
#if defined(__GNUC__) && !defined(__CUDACC__)
#define NATIVEOPS_INLINE inline __attribute__((always_inline))
#else
#define NATIVEOPS_INLINE HOST_DEVICE inline
#endif

namespace nativeops {

// How many parts hold n, the last one perhaps not full, and what they have room for; n >= 0.
template <class T>
HOST_DEVICE constexpr T ceil_div(T n, std::common_type_t<T> part) {
  return (n + part - 1) / part;
}
template <class T>
HOST_DEVICE constexpr T round_up(T n, std::common_type_t<T> part) {
  return ceil_div(n, part) * part;
}

template <class T, int N>
struct View {
  T* data;
  int64_t size_[N];
  int64_t stride_[N];  // in elements; 0 where an axis is broadcast

  HOST_DEVICE int64_t size(int axis) const { return size_[axis]; }
  HOST_DEVICE int64_t stride(int axis) const { return stride_[axis]; }

  template <class... Index>
  HOST_DEVICE T* address(Index... index) const {
    static_assert(sizeof...(Index) == N, "a view takes one index for each of its axes");
    int64_t offset = 0;
    int axis = 0;
    ((offset += static_cast<int64_t>(index) * stride_[axis++]), ...);
    return data + offset;
  }

  // Bools that are read may be bytes of which any but 0 is true, as masks of 0 and 255 are where
  // they are viewed as bools: read as C++'s own, `!` of them would be true as well.
  static constexpr bool kIsMask = std::is_same<T, const bool>::value;

  template <class... Index>
  HOST_DEVICE std::conditional_t<kIsMask, bool, T&> operator()(Index... index) const {
    T* item = address(index...);
    if constexpr (kIsMask) {
      return *reinterpret_cast<const unsigned char*>(item) != 0;
    } else {
      return *item;
    }
  }

  HOST_DEVICE int64_t count() const {
    int64_t n = 1;
    for (int axis = 0; axis < N; ++axis) n *= size_[axis];
    return n;
  }

  // A result that nobody wants, and an optional input that nobody gave, arrive without memory.
  HOST_DEVICE explicit operator bool() const { return data != nullptr; }

  template <class U = T, std::enable_if_t<!std::is_const<U>::value, int> = 0>
  HOST_DEVICE operator View<const U, N>() const {
    View<const U, N> view;
    view.data = data;
    for (int axis = 0; axis < N; ++axis) {
      view.size_[axis] = size_[axis];
      view.stride_[axis] = stride_[axis];
    }
    return view;
  }
};

template <class T, int N>
using In = View<const T, N>;  // read by the kernel
template <class T, int N>
using Out = View<T, N>;  // written by the kernel

// The same array with its last two axes swapped.
template <class T, int N>
HOST_DEVICE View<T, N> transpose(View<T, N> view) {
  const int64_t size = view.size_[N - 1], stride = view.stride_[N - 1];
  view.size_[N - 1] = view.size_[N - 2];
  view.stride_[N - 1] = view.stride_[N - 2];
  view.size_[N - 2] = size;
  view.stride_[N - 2] = stride;
  return view;
}

// view[i]: one axis less.
template <class T, int N>
HOST_DEVICE View<T, N - 1> at(View<T, N> view, int64_t i) {
  View<T, N - 1> part;
  part.data = view.data + i * view.stride_[0];
  for (int axis = 1; axis < N; ++axis) {
    part.size_[axis - 1] = view.size_[axis];
    part.stride_[axis - 1] = view.stride_[axis];
  }
  return part;
}

// A matrix as a batch of one.
template <class T>
HOST_DEVICE View<T, 3> batch_of_one(const View<T, 2>& matrix) {
  return {
      matrix.data, {1, matrix.size(0), matrix.size(1)}, {0, matrix.stride(0), matrix.stride(1)}};
}

// Memory without gaps as a view: dense(data, rows, columns).
template <class T, class... Size>
HOST_DEVICE View<T, sizeof...(Size)> dense(T* data, Size... sizes) {
  constexpr int kAxes = sizeof...(Size);
  View<T, kAxes> view{data, {static_cast<int64_t>(sizes)...}, {}};
  int64_t stride = 1;
  for (int axis = kAxes - 1; axis >= 0; --axis) {
    view.stride_[axis] = stride;
    stride *= view.size_[axis];
  }
  return view;
}

#if !defined(__CUDA_ARCH__)
// Asks for the lines of at most 4 KB of a row; what lies beyond a CPU sees coming by itself.
// Inlined by force, as what calls it: g++ takes a function that only fetches for one without
// effect, and leaves out the calls.
template <int kLocality, class T>
NATIVEOPS_INLINE void fetch_lines(View<T, 1> row) {
  if (row.stride(0) != 1) return;
  constexpr int64_t kMost = 4096 / sizeof(T);
  const auto first = reinterpret_cast<uintptr_t>(row.data);
  const auto end =
      reinterpret_cast<uintptr_t>(row.data + (row.size(0) < kMost ? row.size(0) : kMost));
  for (uintptr_t line = first & ~uintptr_t{63}; line < end; line += 64) {  // rows begin anywhere
    __builtin_prefetch(reinterpret_cast<const void*>(line), 0, kLocality);
  }
}
#endif

// Asks for a row that is read later, where its numbers lie one beside the other: into the second
// cache of a CPU, where more may be under way than into the first. On CUDA other threads work while
// one waits.
template <class T>
NATIVEOPS_INLINE void fetch_early([[maybe_unused]] View<T, 1> row) {
#if !defined(__CUDA_ARCH__)
  fetch_lines<2>(row);
#endif
}

// The same for a row that is read only once, and need not take others' places in the caches.
template <class T>
NATIVEOPS_INLINE void fetch_once([[maybe_unused]] View<T, 1> row) {
#if !defined(__CUDA_ARCH__)
  fetch_lines<0>(row);
#endif
}

}  // namespace nativeops
