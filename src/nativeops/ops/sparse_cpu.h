// SPDX-License-Identifier: Apache-2.0
// Small sparse ops, tuned for the CPU: entries go straight to where they belong. Declared in
// sparse.py.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <type_traits>

#include "nativeops/devices/cpu/dense.h"
#include "nativeops/ops/sparse.h"

namespace nativeops::tuned {

// Whether all numbers are from 0 to size - 1; one by one it would take longer than to use them.
template <class I>
bool all_within(Device& dev, const In<I, 2>& numbers, int64_t size) {
  constexpr int64_t kPart = 1 << 15;
  using U = std::make_unsigned_t<I>;
  const U end = static_cast<U>(std::min<int64_t>(size, std::numeric_limits<I>::max()));
  std::atomic<bool> within{true};
  const auto look = [&](const I* row, int64_t n, auto step) __attribute__((always_inline)) {
    U outside = 0;
    for (int64_t j = 0; j < n; ++j) outside |= U(static_cast<U>(row[j * step]) >= end);
    if (outside != 0) within = false;
  };
  constexpr std::integral_constant<int64_t, 1> one;
  const int64_t width = numbers.size(1), count = numbers.count();
  if (numbers.stride(1) == 1 && numbers.stride(0) == width) {
    dev.parallel(ceil_div(count, kPart), [&](int64_t part) {
      look(numbers.data + part * kPart, std::min(kPart, count - part * kPart), one);
    });
    return within;
  }
  const int64_t some = std::max<int64_t>(1, kPart / std::max<int64_t>(1, width));
  dev.parallel(ceil_div(numbers.size(0), some), [&](int64_t part) {
    const int64_t last = std::min(numbers.size(0), (part + 1) * some);
    for (int64_t i = part * some; i < last; ++i) {
      const I* row = numbers.data + i * numbers.stride(0);
      numbers.stride(1) == 1 ? look(row, width, one) : look(row, width, numbers.stride(1));
    }
  });
  return within;
}
template <class I>
void check_entries(Device& dev, const Entries<I>& entries) {
  const bool any = entries.labels == Entries<I>::kAny;
  const bool within = all_within(dev, entries.time, entries.times) &&
                      (any || all_within(dev, entries.label, entries.labels));
  if (!within) entries.check();  // what is left out by the mask may be anything
}

template <class T, int N>
void copy(Device& dev, View<const T, N> from, View<T, N> to) {
  constexpr int64_t kPart = (256 << 10) / sizeof(T);
  if (from.data == to.data && std::equal(from.stride_, from.stride_ + N, to.stride_)) return;
  if (!is_dense(from) || !is_dense(to)) {
    return fill(dev, to, [=](auto... index) { return from(index...); });
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
  constexpr int64_t kCached = 16 << 20, kAhead = 16;  // beyond, each row is in a page of its own
  const int64_t batch = x.size(1), d = x.size(2), rows = out.count();
  if (!all_within(dev, index, d) || x.stride(0) != batch * x.stride(1) || !is_dense(index) ||
      !is_dense(out)) {
    return nativeops::subtensor_batched_index<T, I>(dev, x, index, out);
  }
  const In<T, 2> vectors{x.data, {rows, d}, {x.stride(1), x.stride(2)}};
  const In<I, 1> place = dense(index.data, rows);
  const Out<T, 1> picked = dense(out.data, rows);
  if (x.count() * static_cast<int64_t>(sizeof(T)) <= kCached) {
    return fill(dev, picked, [=](int64_t row) { return vectors(row, place(row)); });
  }
  fill(dev, picked, [=](int64_t row) {
    const int64_t later = std::min(row + kAhead, rows - 1);
    __builtin_prefetch(&vectors(later, place(later)));
    return vectors(row, place(row));
  });
}

// d_x[t, b, j] = d_out[t, b] where j = index[t, b], else 0: zeros, of which a few are written over.
template <class T, class I>
void subtensor_batched_index_grad(Device& dev, In<T, 3> x, In<I, 2> index, In<T, 2> d_out,
                                  Out<T, 3> d_x) {
  const int64_t batch = d_x.size(1), d = d_x.size(2), rows = d_x.size(0) * batch;
  if (!all_within(dev, index, d) || !is_dense(d_x)) {
    return nativeops::subtensor_batched_index_grad<T, I>(dev, x, index, d_out, d_x);
  }
  const int64_t some = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, d));
  dev.parallel(ceil_div(rows, some), [=](int64_t task) {
    const int64_t low = task * some, end = std::min(rows, low + some);
    std::memset(d_x.data + low * d, 0, static_cast<size_t>((end - low) * d) * sizeof(T));
    for (int64_t row = low; row < end; ++row) {
      const int64_t t = row / batch, b = row - t * batch;
      d_x.data[row * d + index(t, b)] = d_out(t, b);
    }
  });
}

// f(i, b) for all entries that take part, those of a sequence in their order. A task has the
// sequences of a line of memory at least, and some lines if there are enough for all threads: one
// alone, far from the next, no processor sees coming.
template <class I, class F>
void each_entry(Device& dev, const Entries<I>& entries, F f) {
  constexpr int64_t kEntries = 4096, kLine = 64 / sizeof(I);
  const int64_t n = entries.time.size(0), batch = entries.time.size(1);
  const int64_t share = std::min<int64_t>(64, ceil_div(batch, dev.num_threads()));
  const int64_t few = std::max(share, kEntries / std::max<int64_t>(1, n));
  const int64_t some = round_up(std::max(few, kLine), kLine);  // sequences
  const In<bool, 2> mask = entries.mask;
  dev.parallel(ceil_div(batch, some), [=](int64_t task) {
    const int64_t low = task * some, end = std::min(batch, low + some);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t b = low; b < end; ++b) {
        if (!mask || mask(i, b)) f(i, b);
      }
    }
  });
}

// out[t, b, j] = initial[t, b, j] + Σ_i weight[i, b] over the entries at (t, j), in their order
template <class T, class I>
void sparse_to_dense(Device& dev, In<T, 3> initial, In<I, 2> time, In<I, 2> label, In<T, 2> weight,
                     In<bool, 2> mask, Out<T, 3> out) {
  if constexpr (std::is_same_v<T, Accum<T>>) {
    const Entries<I> entries{time, label, mask, out.size(0), out.size(2)};
    check_entries(dev, entries);
    copy(dev, initial, out);
    if (out.count() == 0) return;
    each_entry(dev, entries,
               [=](int64_t i, int64_t b) { out(time(i, b), b, label(i, b)) += weight(i, b); });
  } else {
    nativeops::sparse_to_dense<T, I>(dev, initial, time, label, weight, mask, out);
  }
}

// Without a branch, where nobody could foresee it.
template <class T>
NATIVEOPS_INLINE T either(bool first, T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  const Bits x = bit_cast<Bits>(a), y = bit_cast<Bits>(b);
  return bit_cast<T>(static_cast<Bits>(y ^ ((x ^ y) & (Bits{0} - Bits{first}))));
}

// largest[t, b] = max(initial[t, b], weight[i, b], ..), argmax[t, b] the label of the first such
template <class T, class I>
void max_and_argmax_sparse(Device& dev, In<I, 2> time, In<I, 2> label, In<T, 2> weight,
                           In<T, 2> initial, In<I, 2> initial_argmax, In<bool, 2> mask,
                           Out<T, 2> largest, Out<I, 2> argmax) {
  const Entries<I> entries{time, label, mask, largest.size(0), Entries<I>::kAny};
  check_entries(dev, entries);
  if (largest.count() == 0) return;
  copy(dev, initial, largest);
  copy(dev, initial_argmax, argmax);
  each_entry(dev, entries, [=](int64_t i, int64_t b) {
    const int64_t t = time(i, b);
    const T best = largest(t, b), own = weight(i, b);
    const Accum<T> w(own), now(best);
    const bool more = (w > now) | ((w != w) & (now == now));
    largest(t, b) = either(more, own, best);
    argmax(t, b) = either(more, label(i, b), argmax(t, b));
  });
}

}  // namespace nativeops::tuned
