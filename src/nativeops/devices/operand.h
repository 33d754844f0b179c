// SPDX-License-Identifier: Apache-2.0
// What `contract` is made of: its operands and the ways to fold many numbers into one.
#pragma once
#include <type_traits>
#include <utility>

#include "nativeops/devices/math.h"
#include "nativeops/devices/view.h"

namespace nativeops {

// Two numbers, as zip gives them.
template <class A, class B>
struct Pair {
  A first;
  B second;
};

// Two views of one shape read as one operand: zip(a, b)(i, j) is the pair of a(i, j) and b(i, j).
template <class A, class B, int N>
struct Zip {
  View<A, N> a;
  View<B, N> b;

  HOST_DEVICE int64_t size(int axis) const { return a.size(axis); }
  HOST_DEVICE int64_t stride(int axis) const { return a.stride(axis); }
  template <class... Index>
  HOST_DEVICE Pair<Accum<A>, Accum<B>> operator()(Index... index) const {
    return {static_cast<Accum<A>>(a(index...)), static_cast<Accum<B>>(b(index...))};
  }
};
template <class A, class B, int N>
HOST_DEVICE Zip<A, B, N> zip(View<A, N> a, View<B, N> b) {
  return {a, b};
}
template <class A, class B, int N>
HOST_DEVICE Zip<A, B, N> transpose(Zip<A, B, N> pair) {
  return {transpose(pair.a), transpose(pair.b)};
}

// Stands for the operand `at` where there is none.
struct Nothing {
  HOST_DEVICE int64_t size(int) const { return 0; }
  template <class... Index>
  HOST_DEVICE char operator()(Index...) const {
    return 0;
  }
};
template <class Term>
struct WithoutAt {
  Term term;
  template <class A, class C>
  KERNEL auto operator()(A a, C c, char) const {
    return term(a, c);
  }
};

// The number that an operand gives to a term: bf16 and f16 become float.
template <class Operand>
using Loaded = Accum<std::decay_t<decltype(std::declval<Operand>()(0, 0, 0))>>;

// The number in which a team reduces what f(i) gives: a sum of bool or uint8_t counts.
template <class F, class Value = std::decay_t<decltype(std::declval<F>()(int64_t{}))>>
using TeamValue = std::conditional_t<std::is_integral_v<Value> && sizeof(Value) < sizeof(int32_t),
                                     int64_t, Accum<Value>>;

// What is added up in one pass: see Team::two_sums.
template <class A>
struct TwoSums {
  A first, second;
};

// Views and everything that is indexed like one, in contrast to the functions beside them.
template <class T, class = void>
struct IsOperand : std::false_type {};
template <class T>
struct IsOperand<T, std::void_t<decltype(std::declval<T>().size(0))>> : std::true_type {};

// Folds: start from init, fold(sum, term) for every term in order, and finish(sum, at) in the end,
// where `at` is a char if there is no such operand.
struct Plus {
  template <class A>
  HOST_DEVICE A init() const {
    return A(0);
  }
  template <class A>
  HOST_DEVICE A fold(A sum, A term) const {
    return sum + term;
  }
  template <class A, class At>
  HOST_DEVICE A finish(A sum, At) const {
    return sum;
  }
};
// The largest term, NaN if one is NaN, -infinity if there is none.
struct Largest : Plus {
  template <class A>
  HOST_DEVICE A init() const {
    return lowest<A>();
  }
  template <class A>
  HOST_DEVICE A fold(A largest, A term) const {
    return max_or_nan(largest, term);
  }
};
// log(e^a + e^b + ...), -infinity if there is no term.
struct LogPlus : Largest {
  template <class A>
  HOST_DEVICE A fold(A sum, A term) const {
    return logaddexp(sum, term);
  }
};

}  // namespace nativeops
