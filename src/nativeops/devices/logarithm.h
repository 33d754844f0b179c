// SPDX-License-Identifier: Apache-2.0
// Logarithms that are added up.
#pragma once
#include "nativeops/devices/math.h"

namespace nativeops {

// One of thousands that are added up, and are subtracted again from other sums: finite ones beyond
// 2^36 (6.9e10), as of what is ruled out, count as that, so that doubles keep what stands beside.
constexpr double kMostLogarithm = 0x1p36;
NATIVEOPS_INLINE double bounded(double logarithm) {
  const bool beyond = abs(logarithm) > kMostLogarithm && is_finite(logarithm);
  return !beyond ? logarithm : logarithm > 0 ? kMostLogarithm : -kMostLogarithm;
}

// log Σ e^x as the largest x and the rest, apart: what is subtracted one after the other loses no
// digits, however large both are.
template <class A>
struct LogSum {
  A largest, rest;

  HOST_DEVICE A from(A x) const { return (x - largest) - rest; }
  // The same, but finite where the difference of finite ones is beyond a number. NaN stays.
  HOST_DEVICE A held_from(A x) const {
    return x == lowest<A>() ? from(x) : max2(-Extreme<A>::most, from(x));
  }
  // What its rounding took (Knuth's sums of two): a class that was masked with -1e6 has the digits
  // of the sum here, if at all. NaN or infinite where that is.
  HOST_DEVICE A lost(A x) const {
    const A first = x - largest, second = first - rest;
    const A largest_taken = x - first, rest_taken = first - second;
    return ((x - (first + largest_taken)) + (largest_taken - largest)) +
           ((first - (second + rest_taken)) + (rest_taken - rest));
  }
};

// What the softmax of a row is made of: the largest x, and Σ e^(x - largest). Of numbers that are
// all -infinity the sum is 0.
template <class A>
struct SoftmaxSums {
  A largest, sum;

  HOST_DEVICE LogSum<A> log_sum() const { return {largest, log(sum)}; }
};

}  // namespace nativeops
