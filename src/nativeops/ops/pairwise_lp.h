// SPDX-License-Identifier: Apache-2.0
// Pairwise Lp distance: forward and gradient. Declared in pairwise_lp.py.
#pragma once
#include <cmath>
#include <limits>

#include "nativeops/devices/kernel.h"
#include "nativeops/devices/powers.h"
#include "nativeops/ops/pairwise_l1.h"

namespace nativeops {

// out[i,j] = max_k |x[i,k] - y[j,k]|
struct LargestSize : Largest {
  template <class A>
  HOST_DEVICE A init() const {
    return A(0);
  }
};
template <class T, class R>
void pairwise_largest(Device& dev, In<T, 3> x, In<T, 3> y, Out<R, 3> out) {
  using A = Accum<T>;
  contract(dev, out, x, transpose(y), [] KERNEL(A x, A y) { return abs(x - y); }, LargestSize{});
}

// s (Σ_k ((x[i,k] - y[j,k]) / s)^2)^(1/2) with s = max_k |x[i,k] - y[j,k]|
template <class T>
HOST_DEVICE Accum<T> scaled_l2(In<T, 3> x, In<T, 3> y, int64_t b, int64_t i, int64_t j) {
  using A = Accum<T>;
  A scale = 0, sum = 0;
  for (int64_t k = 0; k < x.size(2); ++k) {
    scale = max_or_nan(scale, abs(A(x(b, i, k)) - A(y(b, j, k))));
  }
  if (!can_scale(scale)) return scale;
  for (int64_t k = 0; k < x.size(2); ++k) {
    const A r = (A(x(b, i, k)) - A(y(b, j, k))) / scale;
    sum += r * r;
  }
  return scale * std::sqrt(sum);
}

// out[i,j] = (Σ_k (x[i,k] - y[j,k])^2)^(1/2), scaled only where the squares would leave the range
// of numbers, which the result tells.
struct RootOfSum : Plus {
  template <class A, class At>
  HOST_DEVICE A finish(A sum, At) const {
    return std::sqrt(sum);
  }
};
template <class T>
void pairwise_l2(Device& dev, In<T, 3> x, In<T, 3> y, Out<T, 3> out) {
  using A = Accum<T>;
  using Limits = std::numeric_limits<A>;
  auto square = [] KERNEL(A x, A y) { return (x - y) * (x - y); };
  contract(dev, out, x, transpose(y), square, RootOfSum{});
  const A least = std::sqrt(Limits::min() / Limits::epsilon());
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i, int64_t j) {
    const A distance = out(b, i, j);
    if (distance >= least && is_finite(distance)) return;
    out(b, i, j) = T(scaled_l2<T>(x, y, b, i, j));
  });
}

// Whether the power of a number of dtype A is that of its limit, the largest.
template <class A>
bool is_limit(double p) {
  return p > static_cast<double>(std::numeric_limits<A>::max());
}

// out[i,j] = s (Σ_k (|x[i,k] - y[j,k]| / s)^p)^(1/p) with s = max_k |x[i,k] - y[j,k]|
template <class P>
struct RootOfPowers : Plus {
  P p;
  template <class A, class At>
  HOST_DEVICE A finish(A sum, At largest) const {
    return can_scale(largest) ? largest * power(sum, A(1) / p) : largest;
  }
};
template <class T>
void pairwise_lp(Device& dev, In<T, 3> x, In<T, 3> y, Out<T, 3> out, double p) {
  using A = Accum<T>;
  if (p == 1) return pairwise_l1<T>(dev, x, y, out);
  if (p == 2) return pairwise_l2<T>(dev, x, y, out);
  if (is_limit<A>(p)) return pairwise_largest(dev, x, y, out);
  RootOfPowers<A> root;
  root.p = static_cast<A>(p);
  const A exponent = root.p;
  const auto fill = [&](Out<A, 3> largest) {
    pairwise_largest(dev, x, y, largest);
    auto term = [=] KERNEL(A x, A y, A largest) {
      return power_of_ratio(x - y, largest, exponent);
    };
    contract(dev, out, x, transpose(y), /*at=*/In<A, 3>(largest), term, root);
  };
  if constexpr (std::is_same_v<A, T>) {
    fill(out);
  } else {  // the power would magnify the rounding of a narrow number
    auto memory = dev.template workspace<A>(out.count());
    fill(dense(memory.data(), out.size(0), out.size(1), out.size(2)));
  }
}

// d_x[i,k] = Σ_j weight(d[i,j], x[i,k] - y[j,k]) and the same for y with the roles exchanged
template <class T, class D, class Weight>
void pairwise_lp_back(Device& dev, In<T, 3> x, In<T, 3> y, D d, Out<T, 3> d_x, Out<T, 3> d_y,
                      Weight weight) {
  if (d_x) contract(dev, d_x, d, y, /*at=*/x, weight);
  if (d_y) contract(dev, d_y, transpose(d), x, /*at=*/y, weight);
}

// Whether a pair of vectors so far apart lets no gradient through: where they are equal, and where
// the distance is larger than its dtype holds.
template <class A>
HOST_DEVICE bool has_no_slope(A distance) {
  return distance == distance + distance;  // of 0 and of infinity alone
}

// The gradient of the maximum is shared equally by all k that attain it:
// weight = d_out · sign(e) / (how many k have |e| = out) if |e| = out, else 0
template <class A>
struct Share : Plus {
  HOST_DEVICE A finish(A count, Pair<A, A> at) const { return at.second / max2(count, A(1)); }
};
template <class T>
void pairwise_largest_grad(Device& dev, In<T, 3> x, In<T, 3> y, In<T, 3> out, In<T, 3> d_out,
                           Out<T, 3> d_x, Out<T, 3> d_y) {
  using A = Accum<T>;
  auto memory = dev.template workspace<A>(out.count());
  const In<A, 3> share = dense(memory.data(), out.size(0), out.size(1), out.size(2));
  const Out<A, 3> result = dense(memory.data(), out.size(0), out.size(1), out.size(2));
  auto attains = [] KERNEL(A x, A y, Pair<A, A> at) {
    return A(T(abs(x - y))) == at.first ? A(1) : A(0);
  };
  contract(dev, result, x, transpose(y), zip(out, d_out), attains, Share<A>{});
  pairwise_lp_back(dev, x, y, zip(share, out), d_x, d_y, [] KERNEL(Pair<A, A> d, A other, A self) {
    const A e = self - other;
    return sign(e) * (A(T(abs(e))) == d.second ? d.first : A(0));
  });
}

// weight = d_out · S^(1/p - 1) · sign(e) · (|e| / s)^(p-1), with s as the distance has it and
// S = Σ_k (|e| / s)^p; 0 where s is 0 or infinite. With the distance, (|e| / out)^(p-1), the power
// would magnify its rounding.
template <class P>
struct ShareOfPowers : Plus {
  P exponent;  // 1/p - 1
  template <class A>
  HOST_DEVICE A finish(A sum, Pair<A, A> at) const {
    return can_scale(at.first) ? at.second * exp(exponent * log(sum)) : at.second;
  }
};
template <class T>
void pairwise_powers_grad(Device& dev, In<T, 3> x, In<T, 3> y, In<T, 3> d_out, Out<T, 3> d_x,
                          Out<T, 3> d_y, double p) {
  using A = Accum<T>;
  const int64_t count = d_out.count(), b = d_out.size(0), n = d_out.size(1), m = d_out.size(2);
  auto memory = dev.template workspace<A>(2 * count);
  const Out<A, 3> largest = dense(memory.data(), b, n, m);
  const Out<A, 3> share = dense(memory.data() + count, b, n, m);
  pairwise_largest(dev, x, y, largest);
  ShareOfPowers<A> fold;
  fold.exponent = static_cast<A>(1 / p - 1);
  const A power_of_sum = static_cast<A>(p);
  const PowerOfQuotient<A> power(static_cast<A>(p - 1));
  auto term = [=] KERNEL(A x, A y, Pair<A, A> at) {
    return power_of_ratio(x - y, at.first, power_of_sum);
  };
  contract(dev, share, x, transpose(y), zip(In<A, 3>(largest), d_out), term, fold);
  auto d = zip(In<A, 3>(share), In<A, 3>(largest));
  pairwise_lp_back(dev, x, y, d, d_x, d_y, [=] KERNEL(Pair<A, A> d, A other, A self) {
    const A e = self - other;
    return has_no_slope(d.second) ? A(0) : d.first * (sign(e) * power(e, d.second));
  });
}

// For p = 2, weight = d_out · e / out; 0 where out is 0 or infinite.
template <class T>
void pairwise_lp_grad(Device& dev, In<T, 3> x, In<T, 3> y, In<T, 3> out, In<T, 3> d_out,
                      Out<T, 3> d_x, Out<T, 3> d_y, double p) {
  using A = Accum<T>;
  if (p == 1) return pairwise_l1_grad<T>(dev, x, y, d_out, d_x, d_y);
  if (is_limit<A>(p)) return pairwise_largest_grad<T>(dev, x, y, out, d_out, d_x, d_y);
  if (p != 2) return pairwise_powers_grad<T>(dev, x, y, d_out, d_x, d_y, p);
  pairwise_lp_back(dev, x, y, zip(d_out, out), d_x, d_y, [] KERNEL(Pair<A, A> d, A other, A self) {
    return has_no_slope(d.second) ? A(0) : d.first * ((self - other) / d.second);
  });
}

}  // namespace nativeops
