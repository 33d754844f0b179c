// SPDX-License-Identifier: Apache-2.0
// The weights of CTC's states in two forms. Wide numbers hold any. Plain doubles take less
// time, and lose nothing either where a block of frames stays within their range.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/fold.h"
#include "nativeops/devices/cpu/softmax.h"
#include "nativeops/devices/ctc.h"

namespace nativeops::tuned {

// When plain doubles are used, as powers of two: a row's largest weight is brought to kTop, none
// but zeros may be below kLeast then, and the smallest probabilities of a block's frames may be
// kReach together, and kFrame each. So all weights are normal numbers, also of the next row when it
// is brought to kTop. Where products of two rows sum up to kWhole, what was lost is 2^-300 of it.
struct Plain {
  static constexpr double kTop = 400, kLeast = -400, kReach = 560, kFrame = 115, kWhole = -700;
};

// Many weights side by side.
template <class W>
struct Weights;

template <>
struct Weights<Wide> {
  static constexpr int64_t kArrays = 2;
  double *m, *e;

  static Weights in(double* memory, int64_t stride) { return {memory, memory + stride}; }
  NATIVEOPS_INLINE Wide operator[](int64_t i) const { return {m[i], e[i]}; }
  NATIVEOPS_INLINE void set(int64_t i, Wide w) const { m[i] = w.m, e[i] = w.e; }
};

template <>
struct Weights<double> {
  static constexpr int64_t kArrays = 1;
  double* number;

  static Weights in(double* memory, int64_t) { return {memory}; }
  NATIVEOPS_INLINE double operator[](int64_t i) const { return number[i]; }
  NATIVEOPS_INLINE void set(int64_t i, double w) const { number[i] = w; }
};

// What is done with one weight.
template <class W>
struct Form;

template <>
struct Form<Wide> {
  static constexpr double kOpen = 0, kShut = Extreme<double>::lowest;

  NATIVEOPS_INLINE static Wide zero() { return wide_zero(); }
  template <class A>
  NATIVEOPS_INLINE static Wide from_log(A x) {
    return wide_exp(static_cast<double>(x));
  }
  NATIVEOPS_INLINE static Wide from_wide(Wide w) { return w; }
  NATIVEOPS_INLINE static Wide to_wide(Wide w) { return w; }
  // w through a way that is open or shut.
  NATIVEOPS_INLINE static Wide through(Wide w, double way) { return {w.m, w.e + way}; }
  NATIVEOPS_INLINE static Wide product(Wide a, Wide b) { return {a.m * b.m, a.e + b.e}; }
  NATIVEOPS_INLINE static double exponent(Wide w) { return w.e; }
  NATIVEOPS_INLINE static Wide scaled(Wide w, double exponent) { return {w.m, w.e + exponent}; }
};

template <>
struct Form<double> {
  static constexpr double kOpen = 1, kShut = 0;

  NATIVEOPS_INLINE static double zero() { return 0; }
  template <class A>
  NATIVEOPS_INLINE static double from_log(A x) {
    return static_cast<double>(simd::exp_negative(x));
  }
  NATIVEOPS_INLINE static double from_wide(Wide w) { return w.m * scale_of(w.e); }
  NATIVEOPS_INLINE static Wide to_wide(double w) {
    const Wide some = Wide{w, 0} * wide_one();
    return {some.m, w == 0 ? lowest<double>() : some.e + (w - w)};  // NaN of NaN
  }
  NATIVEOPS_INLINE static double through(double w, double way) { return w * way; }
  NATIVEOPS_INLINE static double product(double a, double b) { return a * b; }
  NATIVEOPS_INLINE static double exponent(double w) { return to_wide(w).e; }
  NATIVEOPS_INLINE static double scaled(double w, double exponent) {
    return w * scale_of(exponent);
  }
};

NATIVEOPS_INLINE double sum(double a, double b, double c) { return a + b + c; }

// Σ of products of two rows, and what one of them is of it.
template <class W>
struct Whole;

template <>
struct Whole<Wide> {
  double factor = 0, e = 0;

  Whole() = default;
  Whole(Weights<Wide> products, int64_t count)
      : e(fold_row<double>(
            count, lowest<double>(), [=](int64_t i) { return products.e[i]; },
            [](auto a, auto b) { return a > b ? a : b; })) {
    const double top = e;
    factor = 1 / fold_row<double>(
                     count, 0.0,
                     [=](int64_t i) { return products.m[i] * scale_of(products.e[i] - top); },
                     [](auto a, auto b) { return a + b; });
  }
  bool holds() const { return true; }
  NATIVEOPS_INLINE double part(Wide a, Wide b) const {
    return a.m * b.m * factor * scale_of(a.e + b.e - e);
  }
};

template <>
struct Whole<double> {
  double factor = 0;

  Whole() = default;
  Whole(Weights<double> products, int64_t count)
      : factor(1 / fold_row<double>(
                       count, 0.0, [=](int64_t i) { return products[i]; },
                       [](auto a, auto b) { return a + b; })) {}
  // Whether the products that were too small for a double did not matter.
  bool holds() const { return factor <= elementary::power_of_two(-Plain::kWhole); }
  NATIVEOPS_INLINE double part(double a, double b) const { return a * b * factor; }
};

}  // namespace nativeops::tuned
