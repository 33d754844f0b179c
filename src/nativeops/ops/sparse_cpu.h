// SPDX-License-Identifier: Apache-2.0
// Small sparse ops, tuned for the CPU: entries go straight to where they belong. Declared in
// sparse.py.
#pragma once
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "nativeops/ops/sparse.h"

namespace nativeops::tuned {

// Whether all numbers are from 0 to size - 1; one by one it would take longer than to use them.
template <class I>
bool all_within(const In<I, 2>& numbers, int64_t size) {
  using U = std::make_unsigned_t<I>;
  const U end = static_cast<U>(std::min<int64_t>(size, std::numeric_limits<I>::max()));
  bool within = true;
  const auto look = [&](const I* row, int64_t n, auto step) __attribute__((always_inline)) {
    U outside = 0;
    for (int64_t j = 0; j < n; ++j) outside |= U(static_cast<U>(row[j * step]) >= end);
    within = within && outside == 0;
  };
  const bool flat = numbers.stride(1) == 1 && numbers.stride(0) == numbers.size(1);
  const int64_t rows = flat ? 1 : numbers.size(0), n = flat ? numbers.count() : numbers.size(1);
  for (int64_t i = 0; i < rows; ++i) {
    const I* row = numbers.data + i * numbers.stride(0);
    if (numbers.stride(1) == 1) {
      look(row, n, std::integral_constant<int64_t, 1>());
    } else {
      look(row, n, numbers.stride(1));
    }
  }
  return within;
}

template <class T, int N>
bool is_dense(const View<T, N>& array) {
  int64_t stride = 1;
  for (int axis = N - 1; axis >= 0; --axis) {
    if (array.stride(axis) != stride) return false;
    stride *= array.size(axis);
  }
  return true;
}

template <class T>
void copy(Device& dev, In<T, 3> from, Out<T, 3> to) {
  constexpr int64_t kPart = (256 << 10) / sizeof(T);
  if (from.data == to.data && std::equal(from.stride_, from.stride_ + 3, to.stride_)) return;
  if (!is_dense(from) || !is_dense(to)) {
    return fill(dev, to, [=](int64_t t, int64_t b, int64_t j) { return from(t, b, j); });
  }
  const int64_t count = to.count();
  dev.parallel(ceil_div(count, kPart), [=](int64_t part) {
    const int64_t first = part * kPart, n = std::min(kPart, count - first);
    std::memcpy(to.data + first, from.data + first, static_cast<size_t>(n) * sizeof(T));
  });
}

// out[t, b] = x[t, b, index[t, b]]: over both axes at once, as the second may be short.
template <class T, class I>
void subtensor_batched_index(Device& dev, In<T, 3> x, In<I, 2> index, Out<T, 2> out) {
  const int64_t batch = x.size(1), d = x.size(2), rows = out.count();
  if (!all_within(index, d) || x.stride(0) != batch * x.stride(1) || !is_dense(index) ||
      !is_dense(out)) {
    return nativeops::subtensor_batched_index<T, I>(dev, x, index, out);
  }
  const In<T, 2> vectors{x.data, {rows, d}, {x.stride(1), x.stride(2)}};
  const In<I, 1> place = dense(index.data, rows);
  fill(dev, dense(out.data, rows), [=](int64_t row) { return vectors(row, place(row)); });
}

// out[t, b, j] = initial[t, b, j] + Σ_i weight[i, b] over the entries at (t, j), in their order
template <class T, class I>
void sparse_to_dense(Device& dev, In<T, 3> initial, In<I, 2> time, In<I, 2> label, In<T, 2> weight,
                     In<bool, 2> mask, Out<T, 3> out) {
  if constexpr (std::is_same_v<T, Accum<T>>) {
    constexpr int64_t kEntries = 4096;  // of a task
    const int64_t batch = out.size(1), n = time.size(0);
    const Entries<I> entries{time, label, mask, out.size(0), out.size(2)};
    if (!all_within(time, entries.times) || !all_within(label, entries.labels)) entries.check();
    copy(dev, initial, out);
    if (out.count() == 0) return;
    const int64_t some = std::max<int64_t>(1, kEntries / std::max<int64_t>(1, n));  // sequences
    dev.parallel(ceil_div(batch, some), [=](int64_t task) {
      const int64_t low = task * some, end = std::min(batch, low + some);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t b = low; b < end; ++b) {
          if (!mask || mask(i, b)) out(time(i, b), b, label(i, b)) += weight(i, b);
        }
      }
    });
  } else {
    nativeops::sparse_to_dense<T, I>(dev, initial, time, label, weight, mask, out);
  }
}

}  // namespace nativeops::tuned
