// SPDX-License-Identifier: Apache-2.0
// Loops that are written out by the compiler before anything else.
#pragma once
#include <type_traits>
#include <utility>

namespace nativeops::simd {

// body(0) ... body(n - 1) with constants for indices: arrays that only such loops touch become
// registers. (A pragma unrolls too late for that: the sums would go through memory at every step.)
template <class F, int... kIndex>
[[gnu::always_inline]] inline void unroll(F& body, std::integer_sequence<int, kIndex...>) {
  (body(std::integral_constant<int, kIndex>()), ...);
}
template <int n, class F>
[[gnu::always_inline]] inline void unroll(F body) {
  unroll(body, std::make_integer_sequence<int, n>());
}

}  // namespace nativeops::simd
