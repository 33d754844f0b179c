// SPDX-License-Identifier: Apache-2.0
// for_each on the CPU: contiguous parts of the last axis, which vectorise where f does.
#pragma once
#include <cstdint>
#include <type_traits>
#include <utility>

#include "nativeops/devices/cpu/block.h"
#include "nativeops/devices/view.h"

namespace nativeops {

// f(.., j) for j in [low, high) of the last axis, in the given row of all other axes together. All
// that f calls is inlined, however long it is: a call that remains keeps the loop from vectors.
template <class T, class F>
[[gnu::flatten]] void for_each_in_row(const View<T, 1>&, int64_t, int64_t low, int64_t high, F f) {
  NATIVEOPS_IVDEP
  for (int64_t j = low; j < high; ++j) f(j);
}
template <class T, class F>
[[gnu::flatten]] void for_each_in_row(const View<T, 2>&, int64_t row, int64_t low, int64_t high,
                                      F f) {
  NATIVEOPS_IVDEP
  for (int64_t j = low; j < high; ++j) f(row, j);
}
template <class T, class F>
[[gnu::flatten]] void for_each_in_row(const View<T, 3>& view, int64_t row, int64_t low,
                                      int64_t high, F f) {
  const int64_t a = row / view.size(1), b = row % view.size(1);
  NATIVEOPS_IVDEP
  for (int64_t j = low; j < high; ++j) f(a, b, j);
}
template <class T, class F>
[[gnu::flatten]] void for_each_in_row(const View<T, 4>& view, int64_t row, int64_t low,
                                      int64_t high, F f) {
  const int64_t c = row % view.size(2), rest = row / view.size(2);
  const int64_t a = rest / view.size(1), b = rest % view.size(1);
  NATIVEOPS_IVDEP
  for (int64_t j = low; j < high; ++j) f(a, b, c, j);
}

// A body that forgets to write would leave its result as it was found: it is not compiled.
template <class F, size_t... kAxis>
constexpr bool returns_nothing(std::index_sequence<kAxis...>) {
  return std::is_void_v<decltype(std::declval<F&>()((static_cast<int64_t>(kAxis))...))>;
}

// f(i, j, ..) once for every index of the view, in any order and in parallel: f must not read what
// it writes at another index. `cost`, roughly the operations of one f, decides how finely the CPU
// splits the work.
//   for_each(dev, out, [=] KERNEL(int64_t i, int64_t j) { out(i, j) = tanh(x(i, j)); });
template <class T, int N, class F>
void for_each(Device& dev, View<T, N> view, F f, int64_t cost = 1) {
  static_assert(N >= 1 && N <= 4, "for_each takes views of one to four axes");
  static_assert(returns_nothing<F>(std::make_index_sequence<N>()),
                "the body of for_each writes its result, as in `out(i) = ..`: it returns nothing");
  const int64_t total = view.count(), inner = view.size(N - 1);
  if (total == 0) return;
  const int64_t grain = max2<int64_t>(1, kGrain / max2<int64_t>(1, cost));
  dev.parallel(ceil_div(total, grain), [&](int64_t chunk) {
    int64_t low = chunk * grain;
    const int64_t high = min2(total, low + grain);
    while (low < high) {
      const int64_t column = low % inner, end = min2(inner, column + high - low);
      for_each_in_row(view, low / inner, column, end, f);
      low += end - column;
    }
  });
}

// view(i, j, ..) = f(i, j, ..) for every index, as for_each; on a GPU several values are computed
// before one is written, so that a thread waits once for what they read.
//   fill(dev, out, [=] KERNEL(int64_t i, int64_t j) { return tanh(x(i, j)); });
template <class T, int N, class F>
void fill(Device& dev, View<T, N> view, F f, int64_t cost = 1) {
  for_each(dev, view, [=](auto... index) { view(index...) = T(f(index...)); }, cost);
}

}  // namespace nativeops
