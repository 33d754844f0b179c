// SPDX-License-Identifier: Apache-2.0
// Small items moved between arrays, many by one loop, or made 0.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "nativeops/devices/cpu/short_rows.h"
#include "nativeops/devices/view.h"

namespace nativeops::tuned {

// The largest item in bytes. Wider ones are as quick one by one (Zen 5 EPYC, 2026-11).
constexpr int64_t kNarrow = 128;

// Items of equal size in rows, anywhere in memory; strides and size in bytes.
struct Items {
  int64_t rows, items, bytes;
  const char* from;
  int64_t from_row, from_item;
  char* to;
  int64_t to_row, to_item;
};

// kRows rows at a time. An item is one move of kBytes, or two that overlap: so a few kinds of
// moves serve all sizes, and none asks in the loop.
template <int kBytes, bool kTwice, int kRows>
[[gnu::always_inline]] inline void move_rows(const Items& all, int64_t row, int64_t first,
                                             int64_t end) {
  const char* from = all.from + row * all.from_row + first * all.from_item;
  char* to = all.to + row * all.to_row + first * all.to_item;
  const int64_t rest = all.bytes - kBytes, from_row = all.from_row, to_row = all.to_row;
  const int64_t from_item = all.from_item, to_item = all.to_item;
  for (int64_t k = first; k < end; ++k, from += from_item, to += to_item) {
    char low[kRows][kBytes], high[kRows][kBytes];
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(low[r], from + r * from_row, kBytes);
      if (kTwice) std::memcpy(high[r], from + r * from_row + rest, kBytes);
    }
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(to + r * to_row, low[r], kBytes);
      if (kTwice) std::memcpy(to + r * to_row + rest, high[r], kBytes);
    }
  }
}

template <int kBytes, bool kTwice>
[[gnu::noinline]] void move_all(const Items& all) {
  constexpr int64_t kBlock = 256;  // items whose lines stay in the first cache for the next rows
  constexpr int kRows = kBytes > 32 ? 2 : 4;
  for (int64_t first = 0; first < all.items; first += kBlock) {
    const int64_t end = std::min(all.items, first + kBlock);
    int64_t row = 0;
    for (; row + kRows <= all.rows; row += kRows) {
      move_rows<kBytes, kTwice, kRows>(all, row, first, end);
    }
    for (; row < all.rows; ++row) move_rows<kBytes, kTwice, 1>(all, row, first, end);
  }
}

template <int kBytes = 1>
void move_by_size(const Items& all) {
  if (all.bytes == kBytes) return move_all<kBytes, false>(all);
  if constexpr (kBytes < kNarrow) {
    return all.bytes < 2 * kBytes ? move_all<kBytes, true>(all) : move_by_size<2 * kBytes>(all);
  }
}

inline void move_items(Items all) {
  if (all.rows <= 0 || all.items <= 0) return;
  if (all.items < all.rows) {  // the longer loop inside
    std::swap(all.rows, all.items);
    std::swap(all.from_row, all.from_item);
    std::swap(all.to_row, all.to_item);
  }
  if (all.rows == 1 && all.from_item == all.bytes && all.to_item == all.bytes) {
    std::memcpy(all.to, all.from, static_cast<size_t>(all.items * all.bytes));
    return;
  }
  move_by_size(all);
}

// A corner of an array of rows of items of `width` numbers, one beside the other.
template <class T>
struct Corner {
  T* data;
  int64_t row, item;  // from one to the next, in numbers
};

// to[r][k] = from[r][k] for `rows` rows of `items` items.
template <class T>
void move_items(int64_t rows, int64_t items, int64_t width, Corner<const T> from, Corner<T> to) {
  constexpr int64_t kUnit = sizeof(T);
  move_items({rows, items, width * kUnit, reinterpret_cast<const char*>(from.data),
              from.row * kUnit, from.item * kUnit, reinterpret_cast<char*>(to.data), to.row * kUnit,
              to.item * kUnit});
}

// The number or 0, by its bits: for a choice of what is stored the compiler would take a jump.
template <class T>
[[gnu::always_inline]] inline void keep_if(bool keep, T& number) {
  using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, Wide>;
  Bits bits;
  std::memcpy(&bits, &number, sizeof(T));
  bits = static_cast<Bits>(bits & (Bits(0) - Bits(keep)));
  std::memcpy(&number, &bits, sizeof(T));
}

// Whether with_constant found no constant. An item of so many numbers is worth a jump.
template <class Width>
constexpr bool is_variable(const Width&) {
  return std::is_same_v<Width, int64_t>;
}

// Makes 0 of the items of one row that are not kept.
template <class T>
void keep_items(const bool* keep, int64_t step, T* items, int64_t n, int64_t d) {
  constexpr int64_t kBlock = 512;
  with_constant(d, [=](auto width) __attribute__((always_inline)) {
    alignas(64) bool here[kBlock];
    for (int64_t first = 0; first < n; first += kBlock) {
      const int64_t some = std::min(kBlock, n - first);
      for (int64_t k = 0; k < some; ++k) here[k] = keep[(first + k) * step];
      T* __restrict to = items + first * width;
      for (int64_t k = 0; k < some; ++k) {
        if constexpr (is_variable(width)) {
          if (!here[k]) std::fill_n(to + k * width, width, T(0.0f));
        } else {
          for (int64_t j = 0; j < width; ++j) keep_if(here[k], to[k * width + j]);
        }
      }
    }
  });
}

}  // namespace nativeops::tuned
