// SPDX-License-Identifier: Apache-2.0
// Loops that are written out by the compiler before anything else.
#pragma once
#include <cstdint>
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

// f(constant): the first of these that is not below n, or the last.
template <int kFirst, int... kRest, class F>
[[gnu::always_inline]] inline auto with_one_of(int64_t n, F&& f) {
  if constexpr (sizeof...(kRest) > 0) {
    if (n > kFirst) return with_one_of<kRest...>(n, std::forward<F>(f));
  }
  return f(std::integral_constant<int, kFirst>());
}

}  // namespace nativeops::simd
