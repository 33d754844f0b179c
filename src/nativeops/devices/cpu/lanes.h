// SPDX-License-Identifier: Apache-2.0
// Some numbers side by side that become one: in the same order for every instruction set.
#pragma once
#include <cstring>
#include <utility>

#include "nativeops/devices/elementary.h"

namespace nativeops {

#if NATIVEOPS_LEVEL >= 2
constexpr int kRegisterBytes = 64;
#elif NATIVEOPS_LEVEL == 1
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

// n numbers: a register, or two halves where one is too small. f folds two registers, or numbers.
template <class V, int n, bool kFits = n * sizeof(V) <= kRegisterBytes>
struct Lanes {
  using Half = Lanes<V, n / 2>;
  Half low, high;

  static Lanes load(const V* from) { return {Half::load(from), Half::load(from + n / 2)}; }
  static Lanes all(V value) { return {Half::all(value), Half::all(value)}; }
  template <class F>
  Lanes folded(Lanes other, F f) const {
    return {low.folded(other.low, f), high.folded(other.high, f)};
  }
  template <class F>
  Half halved(F f) const {
    return low.folded(high, f);
  }
};
template <class V, int n>
struct Lanes<V, n, true> {
  using Half = Lanes<V, n / 2>;
  typedef V Raw __attribute__((vector_size(n * sizeof(V))));
  Raw raw;

  static Lanes load(const V* from) {
    Lanes lanes;
    std::memcpy(&lanes.raw, from, sizeof lanes.raw);
    return lanes;
  }
  static Lanes all(V value) { return {value - Raw{}}; }
  template <class F>
  Lanes folded(Lanes other, F f) const {
    return {f(raw, other.raw)};
  }
  // The first half folded with the second. In registers: what is stored as a whole and read by
  // halves is waited for.
  template <class F>
  Half halved(F f) const {
    return halved(f, std::make_integer_sequence<int, n / 2>());
  }

 private:
  template <class F, int... i>
  Half halved(F f, std::integer_sequence<int, i...>) const {
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12  // which lacks it
    const V* number = reinterpret_cast<const V*>(&raw);
    return Half::load(number).folded(Half::load(number + n / 2), f);
#else
    return {f(__builtin_shufflevector(raw, raw, i...),
              __builtin_shufflevector(raw, raw, (i + n / 2)...))};
#endif
  }
};

// All of them folded: the first half with the second, until one is left.
template <class V, int n, class F>
NATIVEOPS_INLINE V fold_lanes(Lanes<V, n> lanes, F f) {
  if constexpr (n > 2) {
    return fold_lanes(lanes.halved(f), f);
  } else {
    return f(lanes.raw[0], lanes.raw[1]);
  }
}

}  // namespace nativeops
