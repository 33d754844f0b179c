// SPDX-License-Identifier: Apache-2.0
// The transposition of a square of numbers held in registers.
#pragma once
#include "nativeops/devices/cpu/simd.h"

namespace nativeops::simd {

// Exchanges lanes with index bit kBit set in `low` for lanes without it in `high`: one step of a
// transposition.
template <int kBit, class T, int... kLane>
[[gnu::always_inline]] inline void exchange(Vec<T>& low, Vec<T>& high,
                                            std::integer_sequence<int, kLane...>) {
  constexpr int n = kLanes<T>;
  const auto a = low.raw, b = high.raw;
  low.raw = __builtin_shufflevector(a, b, (kLane & kBit ? n + kLane - kBit : kLane)...);
  high.raw = __builtin_shufflevector(a, b, (kLane & kBit ? n + kLane : kLane + kBit)...);
}

template <int kBit, class T>
[[gnu::always_inline]] inline void transpose_step(Vec<T> (&rows)[kLanes<T>]) {
  if constexpr (kBit > 0) {
    unroll<kLanes<T>>([&](auto i) __attribute__((always_inline)) {
      constexpr auto lanes = std::make_integer_sequence<int, kLanes<T>>();
      if constexpr (!(i & kBit)) exchange<kBit>(rows[i], rows[i | kBit], lanes);
    });
    transpose_step<kBit / 2>(rows);
  }
}

// rows[i][j] becomes rows[j][i].
template <class T>
[[gnu::always_inline]] inline void transpose(Vec<T> (&rows)[kLanes<T>]) {
  transpose_step<kLanes<T> / 2>(rows);
}

}  // namespace nativeops::simd
