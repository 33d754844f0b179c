// SPDX-License-Identifier: Apache-2.0
// Pairwise sums of d(x,y) = own(x) + own(y) - 2 shared(x,y), as |x - y| = x + y - 2 min(x,y) and
// (x - y)^2 = x^2 + y^2 - 2 xy: what is done for each pair is less than by the formula of d. Where
// the distance is small beside the numbers, too much would cancel, and where they are not finite,
// nothing would be left: those pairs are summed up by themselves, by d.
#pragma once
#include <algorithm>
#include <limits>
#include <utility>

#include "nativeops/devices/cpu/pairwise.h"
#include "nativeops/devices/cpu/softmax.h"

namespace nativeops::tuned {

// Σ_k own(x_k) of each row, and Σ_k |own(x_k)|.
template <class A>
struct RowSums {
  const A *own, *size;

  RowSums from(int64_t row) const { return {own + row, size + row}; }
};

// Two sums along k: of a few numbers each, then of those. A long sum of like numbers would err to
// one side in each step.
template <class A, class Add>
std::pair<A, A> two_sums(int64_t depth, Add add) {
  constexpr int64_t kPart = 64 * simd::kLanes<A>;
  auto first = simd::zero<A>(), second = first;
  for (int64_t start = 0; start < depth; start += kPart) {
    auto a = simd::zero<A>(), b = a;
    const int64_t end = std::min(start + kPart, depth);
    for (int64_t k = start; k < end; k += simd::kLanes<A>) add(k, depth - k, a, b);
    first = first + a, second = second + b;
  }
  return {simd::sum_of_lanes(first), simd::sum_of_lanes(second)};
}

// Between these no digit of a sum was lost that counts: what cancels is at most nine times the
// distance, about three bits.
template <class A>
struct WellApart {
  static constexpr A kLeast = A(1) / 8;
  static constexpr A kMost = std::numeric_limits<A>::max() / 4;
  static constexpr A kSmallest = std::numeric_limits<A>::min() * (int64_t{1} << 40);
};

// One sum for a pair of rows, along k: of d, and of the sizes.
template <class A>
struct PairSum {
  A distance, size;

  bool well_apart() const {
    using Limit = WellApart<A>;
    return distance >= size * Limit::kLeast && size <= Limit::kMost && size >= Limit::kSmallest;
  }
};
template <class Formula, class T>
[[gnu::noinline]] PairSum<Accum<T>> sum_of_pair(In<T, 1> x, In<T, 1> y) {
  using V = simd::Vec<Accum<T>>;
  const auto [distance, size] =
      two_sums<Accum<T>>(x.size(0), [&](int64_t k, int64_t count, V& sum, V& sizes) {
        const V a = load_along(x, &x(k), count), b = load_along(y, &y(k), count);
        sum = sum + Formula::distance(a, b);
        sizes = sizes + (simd::abs(Formula::own(a)) + simd::abs(Formula::own(b)));
      });
  return {distance, size};
}

template <class Formula, class T>
struct Expanded {
  using A = Accum<T>;
  using V = simd::Vec<A>;
  Formula formula;
  In<T, 2> x, y;
  RowSums<A> of_x, of_y;
  // A sum of one part starts at minus a quarter of what both rows sum up to: halfway it is near
  // zero, and its roundings are half of those of a sum from zero on. Parts are short enough.
  A first = depth_step<A>(x.size(1)) == x.size(1) ? A(-0.25) : A(0);

  V start(int64_t i, int64_t j, int64_t count) const {
    return own(i, j, count) * simd::broadcast(first);
  }
  V own(int64_t i, int64_t j, int64_t count) const {
    return simd::load(of_y.own + j, count) + simd::broadcast_from(of_x.own + i);
  }
  V add(V sum, V y, const A* x) const { return formula.add_shared(sum, y, x); }
  V join(V sum, V more) const { return sum + more; }
  V finish(V shared, int64_t i, int64_t j, int64_t count) const {
    using Limit = WellApart<A>;
    const V size = simd::load(of_y.size + j, count) + simd::broadcast_from(of_x.size + i);
    const V distance = own(i, j, count) * simd::broadcast(1 + 2 * first) - (shared + shared);
    const uint32_t all = (uint64_t{1} << std::min<int64_t>(count, simd::kLanes<A>)) - 1;
    const uint32_t well = simd::at_least(distance, size * simd::broadcast(Limit::kLeast)) &
                          simd::at_least(simd::broadcast(Limit::kMost), size) &
                          simd::at_least(size, simd::broadcast(Limit::kSmallest));
    const V result = Formula::finish(distance);
    return (well & all) == all ? result : by_themselves(result, i, j, all & ~well);
  }
  [[gnu::noinline]] V by_themselves(V result, int64_t i, int64_t j, uint32_t which) const {
    alignas(64) A lane[simd::kLanes<A>];
    simd::store(lane, result);
    for (; which != 0; which &= which - 1) {
      const int l = __builtin_ctz(which);
      lane[l] = Formula::by_itself(at(x, i), at(y, j + l));
    }
    return simd::load(lane);
  }
};

// The sums of all rows into `to`.
template <class Formula, class T>
RowSums<Accum<T>> sums_of_rows(Device& dev, In<T, 3> x, Accum<T>* to) {
  using A = Accum<T>;
  const int64_t n = x.size(1), rows = x.size(0) * n, d = x.size(2);
  constexpr int64_t kAtOnce = 64;
  const int64_t tasks = ceil_div(rows, kAtOnce), steps = rows * ceil_div(d, simd::kLanes<A>);
  parallel_if_large(dev, tasks, steps, [&](int64_t task) {
    for (int64_t r = task * kAtOnce; r < std::min(rows, (task + 1) * kAtOnce); ++r) {
      const In<T, 1> row = at(at(x, r / n), r % n);
      const auto [own, size] =
          two_sums<A>(d, [&](int64_t k, int64_t count, auto& sum, auto& sizes) {
            const auto a = Formula::own(load_along(row, &row(k), count));
            sum = sum + a, sizes = sizes + simd::abs(a);
          });
      to[r] = own, to[rows + r] = size;
    }
  });
  return {to, to + rows};
}

// Whether nearly all of some pairs are well apart: pairs of random places, each of both sets, so
// that it is the same if x and y change their places.
template <class Formula, class T>
bool most_are_well_apart(In<T, 3> x, In<T, 3> y) {
  constexpr int64_t kPairs = 32, kPlaces = 64, kFew = 2;
  int64_t close = 0;
  uint32_t random = 1;
  for (int64_t s = 0; s < kPairs; ++s) {
    random = random * 1664525 + 1013904223;  // Numerical Recipes' generator; its high bits
    const int64_t p = random >> 26, other = random >> 20 & 63, q = other == p ? p ^ 1 : other;
    const auto x_b = at(x, s * x.size(0) / kPairs), y_b = at(y, s * y.size(0) / kPairs);
    const auto is_close = [&](int64_t i, int64_t j) {
      const In<T, 1> row = at(x_b, i * x.size(1) / kPlaces);
      return !sum_of_pair<Formula>(row, at(y_b, j * y.size(1) / kPlaces)).well_apart();
    };
    close += is_close(p, q) + is_close(q, p);
  }
  return close <= kFew;
}

// Computes `out` if that pays: many long rows, nearly all of them well apart. Else false.
template <class Formula, class T>
bool pairwise_expanded(Device& dev, Formula formula, In<T, 3> x, In<T, 3> y, Out<T, 3> out) {
  using A = Accum<T>;
  constexpr int64_t kRows = 128, kDepth = 24, kSums = (int64_t{4} << 20) / sizeof(A);
  const int64_t n_batch = out.size(0), n = out.size(1), m = out.size(2), d = x.size(2);
  const int64_t sums = 2 * n_batch * (n + m);
  if (std::min(n, m) < kRows || d < kDepth || sums > kSums) return false;
  if (!most_are_well_apart<Formula>(x, y)) return false;
  Scratch<A, 4096> memory(dev, sums);
  const auto of_x = sums_of_rows<Formula>(dev, x, memory.data());
  const auto of_y = sums_of_rows<Formula>(dev, y, memory.data() + 2 * n_batch * n);
  const auto fold_of = [&](int64_t b, int64_t i, int64_t j) {
    return Expanded<Formula, T>{formula, part(at(x, b), i, n, 0, d), part(at(y, b), j, m, 0, d),
                                of_x.from(b * n + i), of_y.from(b * m + j)};
  };
  pairwise_fold(dev, fold_of, x, y, out);
  return true;
}

}  // namespace nativeops::tuned
