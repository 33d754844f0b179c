// SPDX-License-Identifier: Apache-2.0
// Powers of numbers that are divided by a larger one first, so that no power leaves the range.
#pragma once
#include <cmath>
#include <limits>

#include "nativeops/devices/math.h"

namespace nativeops {

// r^p for 0 <= r <= 1 and p > 0. The error of p log(r) is large only where r^p is small.
template <class A>
HOST_DEVICE A power(A r, A p) {
  return exp(p * log(r));
}

// Whether differences can be divided by their largest.
template <class A>
HOST_DEVICE bool can_scale(A largest) {
  return largest > 0 && is_finite(largest);
}

// (|e| / largest)^p
template <class A>
HOST_DEVICE A power_of_ratio(A e, A largest, A p) {
  return power(abs(e) / (can_scale(largest) ? largest : A(1)), p);
}

// (|e| / s)^p for p > 0, also where the quotient itself would be lost, but not its power.
template <class A>
struct PowerOfQuotient {
  using Limits = std::numeric_limits<A>;
  A p, least = Limits::min(), grow, shrink, log_scale;

  explicit PowerOfQuotient(A p) : p(p) {
    grow = 1 / (64 * Limits::min());
    shrink = std::sqrt(Limits::min());
    log_scale = std::log(grow) - std::log(shrink);
  }
  HOST_DEVICE A operator()(A e, A s) const {
    e = abs(e);
    const bool lost = e < s * least;
    const A quotient = (lost ? e * grow : e) / (lost ? s * shrink : s);
    return exp(p * (log(quotient) - (lost ? log_scale : A(0))));
  }
};

}  // namespace nativeops
