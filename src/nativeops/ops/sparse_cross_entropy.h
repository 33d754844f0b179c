// SPDX-License-Identifier: Apache-2.0
// Cross entropy against sparse targets, and its gradient. Declared in sparse_cross_entropy.py.
#pragma once
#include <cmath>

#include "nativeops/devices/logarithm.h"
#include "nativeops/ops/sparse.h"

namespace nativeops {

// weight · x + more, where no weight makes nothing of infinity: rounded once, wherever it stands. A
// compiler would do so in some versions of a loop, and not in others.
template <class A>
HOST_DEVICE A weighed(A weight, A x, A more) {
  return weight == 0 && x == highest<A>() ? more : std::fma(weight, x, more);
}

// The sums of a row and its exponentials: p[j] = e^(z[t,b,j] - largest), which the sum divides.
struct TeamRows {
  template <class I>
  static void check(Device&, const Entries<I>& entries) {
    entries.check();
  }
  template <class T, class A>
  KERNEL static SoftmaxSums<A> exponentials(Team team, const In<T, 3>& z, int64_t t, int64_t b,
                                            const Out<A, 1>& p) {
    const A most = team.max(0, z.size(2), [=](int64_t j) { return A(z(t, b, j)); });
    team.each(0, z.size(2), [=](int64_t j) { p(j) = exp(A(z(t, b, j)) - most); });
    team.sync();
    const A sum = team.sum(0, z.size(2), [=](int64_t j) { return p(j); });
    return {most, sum};
  }
};

// With p = softmax(z[t, b]) and the entries i of the frame, W = Σ_i w_i:
//   loss = -Σ_i w_i·log p[label_i]      grad_z = W·p - Σ_i w_i·onehot(label_i)
template <class T, class I, class Rows = TeamRows>
void cross_entropy_softmax_and_gradient_sparse(Device& dev, In<T, 3> z, In<I, 2> time,
                                               In<I, 2> label, In<T, 2> weight, In<bool, 2> mask,
                                               In<bool, 2> z_mask, Out<T, 2> loss, Out<T, 3> grad_z,
                                               Out<T, 2> max_z) {
  using A = Accum<T>;
  const int64_t batch = z.size(1), d = z.size(2);
  const Entries<I> entries{time, label, mask, z.size(0), d};
  Rows::check(dev, entries);
  const auto memory = memory_of_lists(dev, entries, batch);
  const Lists lists = sort_by_frame(dev, entries, batch, memory.data());
  for_each_item<A>(
      dev, z.size(0) * batch, d,
      [=] KERNEL(Team team, int64_t row, Out<A, 1> grad) {
        const int64_t t = row / batch, b = row % batch;
        const SoftmaxSums<A> all = Rows::exponentials(team, z, t, b, grad);
        const LogSum<A> log_sum = all.log_sum();
        const bool here = !z_mask || z_mask(t, b);
        A total = 0, sum = 0;
        bool none = true;  // that counts
        if (here) {
          lists.each(t, b, [&](int64_t i) {
            const A w = entries.value(weight, i, b);
            total += w, none = false;
            sum = weighed(w, 0 - log_sum.from(A(z(t, b, entries.place(i, b)))), sum);
          });
        }
        const A factor = total / all.sum;
        none |= total == 0 && all.sum == all.sum;
        team.each(0, d, [=](int64_t j) { grad(j) = none ? A(0) : grad(j) * factor; });
        team.sync();
        if (here && team.rank() == 0) {
          lists.each(t, b,
                     [=](int64_t i) { grad(entries.place(i, b)) -= entries.value(weight, i, b); });
        }
        team.sync();
        team.each(0, d, [=](int64_t j) { grad_z(t, b, j) = T(grad(j)); });
        if (team.rank() > 0) return;
        loss(t, b) = T(sum);
        max_z(t, b) = T(all.largest);
      },
      d);
}

// What arrives at the loss and at the largest logit, whose softmax is in grad_z already:
//   d_z = d_loss · grad_z + d_max_z · onehot(first largest)
template <class T>
KERNEL void slopes_of_loss(Team team, int64_t t, int64_t b, const In<T, 3>& z,
                           const In<T, 3>& grad_z, const In<T, 2>& d_loss, const In<T, 2>& d_max_z,
                           const Out<T, 3>& d_z) {
  using A = Accum<T>;
  const int64_t d = z.size(2);
  const A d_l = A(d_loss(t, b)), d_most = A(d_max_z(t, b));
  int64_t first = d;
  if (d_most != 0) {
    const A most = team.max(0, d, [=](int64_t j) { return A(z(t, b, j)); });
    first = team.min(0, d, [=](int64_t j) { return A(z(t, b, j)) == most ? j : d; });
  }
  team.each(0, d, [=](int64_t j) { d_z(t, b, j) = T(d_l * A(grad_z(t, b, j))); });
  team.sync();
  if (team.rank() == 0 && first < d) {
    d_z(t, b, first) = T(d_l * A(grad_z(t, b, first)) + d_most);
  }
}

// Whether an array is one zero at all its places, as frameworks say that nothing arrives there.
template <class T, int N>
bool is_nothing([[maybe_unused]] const In<T, N>& array) {
  if constexpr (kHostReads) {
    bool one = array.count() > 0;
    for (int axis = 0; axis < N; ++axis) one &= array.size(axis) <= 1 || array.stride(axis) == 0;
    return one && Accum<T>(*array.data) == 0;
  } else {
    return false;
  }
}

// With v = d_grad_z[t, b]:
//   d_z = d_loss·grad_z + W·p·(v - p·v) + d_max_z·onehot(first largest)
//   d_weight_i = -d_loss·log p[label_i] + p·v - v[label_i]
template <class T, class I, class Rows = TeamRows>
void cross_entropy_softmax_and_gradient_sparse_grad(Device& dev, In<T, 3> z, In<I, 2> time,
                                                    In<I, 2> label, In<T, 2> weight,
                                                    In<T, 3> grad_z, In<T, 2> d_loss,
                                                    In<T, 3> d_grad_z, In<T, 2> d_max_z,
                                                    In<bool, 2> mask, In<bool, 2> z_mask,
                                                    Out<T, 3> d_z, Out<T, 2> d_weight) {
  using A = Accum<T>;
  const int64_t batch = z.size(1), d = z.size(2), rows = z.size(0) * batch;
  const Entries<I> entries{time, label, mask, z.size(0), d};
  Rows::check(dev, entries);
  if (!d_weight && is_nothing(d_grad_z)) {
    return for_each_item(
        dev, rows,
        [=] KERNEL(Team team, int64_t row) {
          slopes_of_loss(team, row / batch, row % batch, z, grad_z, d_loss, d_max_z, d_z);
        },
        d);
  }
  const auto memory = memory_of_lists(dev, entries, batch);
  const Lists lists = sort_by_frame(dev, entries, batch, memory.data());
  if (d_weight)
    for_each(dev, d_weight, [=] KERNEL(int64_t i, int64_t b) { d_weight(i, b) = T(0.0f); });
  for_each_item<A>(
      dev, rows, d,
      [=] KERNEL(Team team, int64_t row, Out<A, 1> grad) {
        const int64_t t = row / batch, b = row % batch;
        if (!d_weight) {
          const auto arrives = [=](int64_t j) { return A(d_grad_z(t, b, j)) != 0; };
          if (team.sum(0, d, arrives) == 0) {
            return slopes_of_loss(team, t, b, z, grad_z, d_loss, d_max_z, d_z);
          }
        }
        const SoftmaxSums<A> all = Rows::exponentials(team, z, t, b, grad);
        const LogSum<A> log_sum = all.log_sum();
        const A share = 1 / all.sum, d_l = A(d_loss(t, b));
        const auto p = [=](int64_t j) { return grad(j) * share; };
        const A pv = team.sum(0, d, [=](int64_t j) { return p(j) * A(d_grad_z(t, b, j)); });
        const int64_t first =
            team.min(0, d, [=](int64_t j) { return A(z(t, b, j)) == all.largest ? j : d; });
        const bool here = !z_mask || z_mask(t, b);
        A total = 0;
        bool none = true;
        if (here) {
          lists.each(t, b, [&](int64_t i) { total += entries.value(weight, i, b), none = false; });
          if (d_weight && team.rank() == 0) {
            lists.each(t, b, [=](int64_t i) {
              const int64_t j = entries.place(i, b);
              const A surprise = 0 - log_sum.from(A(z(t, b, j)));
              d_weight(i, b) = T(weighed(d_l, surprise, pv) - A(d_grad_z(t, b, j)));
            });
          }
        }
        if (!d_z) return;
        none |= total == 0 && all.sum == all.sum;
        team.each(0, d, [=](int64_t j) {
          const A back = none ? A(0) : total * p(j) * (A(d_grad_z(t, b, j)) - pv);
          const A most = j == first ? A(d_max_z(t, b)) : A(0);
          d_z(t, b, j) = T(d_l * A(grad_z(t, b, j)) + back + most);
        });
      },
      d);
}

}  // namespace nativeops
