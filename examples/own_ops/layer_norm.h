// SPDX-License-Identifier: Apache-2.0
// Normalised rows, and their gradient. Declared in layer_norm.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// The mean of a row, and one over its standard deviation: in two passes, and from the first number
// on, so that nothing cancels. Inline and by reference: a short row takes no longer than a call.
template <class A>
struct Spread {
  A mean, scale;
};
template <class T, class A>
KERNEL inline Spread<A> spread(Team team, const In<T, 1>& x, A eps) {
  const int64_t n = x.size(0);
  const A share = 1 / A(max2<int64_t>(n, 1)), first = n > 0 ? A(x(0)) : A(0);
  const A mean = first + share * team.sum(0, n, [=](int64_t i) { return A(x(i)) - first; });
  const A square = team.sum(0, n, [=](int64_t i) { return (A(x(i)) - mean) * (A(x(i)) - mean); });
  return {mean, 1 / sqrt(share * square + eps)};
}

// y[i] = (x[i] - mean) scale · weight[i] + bias[i]; a gradient takes mean and scale as they are.
template <class T>
void layer_norm(Device& dev, In<T, 2> x, In<T, 1> weight, In<T, 1> bias, Out<T, 2> y,
                Out<Accum<T>, 1> mean, Out<Accum<T>, 1> scale, double eps) {
  using A = Accum<T>;
  for_each_item(dev, x.size(0), [=] KERNEL(Team team, int64_t b) {
    const auto row = spread(team, at(x, b), A(eps));
    if (mean && team.rank() == 0) mean(b) = row.mean;
    if (scale && team.rank() == 0) scale(b) = row.scale;
    team.fill(at(y, b), [=](int64_t i) {
      return (A(x(b, i)) - row.mean) * row.scale * A(weight(i)) + A(bias(i));
    });
  });
}

// With z = (x - mean) scale and d = d_y · weight:
// d_x[i] = scale (d[i] - (Σ_k d[k]) / n - z[i] (Σ_k d[k] z[k]) / n)
// d_weight[i] = Σ_b d_y[b,i] z[b,i] and d_bias[i] = Σ_b d_y[b,i]: in parts of some rows, one after
// another by a team, that are added in order in the end.
template <class T>
void layer_norm_grad(Device& dev, In<T, 2> x, In<T, 1> weight, In<Accum<T>, 1> mean,
                     In<Accum<T>, 1> scale, In<T, 2> d_y, Out<T, 2> d_x, Out<T, 1> d_weight,
                     Out<T, 1> d_bias) {
  using A = Accum<T>;
  const int64_t rows = x.size(0), n = x.size(1), parts = 1 + rows / kPartRows;
  const A share = 1 / A(n);
  auto memory = dev.workspace<A>(2 * parts * n);
  const View<A, 3> sums = dense(memory.data(), 2, parts, n);
  for_each_item(dev, parts, [=] KERNEL(Team team, int64_t part) {
    team.each(0, n, [=](int64_t i) { sums(0, part, i) = sums(1, part, i) = 0; });
    for (int64_t b = part * kPartRows; b < min2(rows, (part + 1) * kPartRows); ++b) {
      const A middle = mean(b), factor = scale(b);
      const auto z = [=](int64_t i) { return (A(x(b, i)) - middle) * factor; };
      const auto d = [=](int64_t i) { return A(d_y(b, i)) * A(weight(i)); };
      const auto both = team.two_sums(0, n, [=](int64_t i) {
        const A d_i = d(i);
        return TwoSums<A>{d_i, d_i * z(i)};
      });
      const A mean_d = share * both.first, slope = share * both.second;
      team.each(0, n, [=](int64_t i) {
        const A z_i = z(i), d_i = A(d_y(b, i));
        const A to_weight = sums(0, part, i) + d_i * z_i, to_bias = sums(1, part, i) + d_i;
        d_x(b, i) = T(factor * (d(i) - mean_d - z_i * slope));
        sums(0, part, i) = to_weight;
        sums(1, part, i) = to_bias;
      });
    }
  });
  add_rows(dev, at(sums, 0), d_weight);
  add_rows(dev, at(sums, 1), d_bias);
}

}  // namespace nativeops
