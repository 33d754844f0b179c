// SPDX-License-Identifier: Apache-2.0
// Small sparse ops: numbers at places (time, sequence, label). Declared in sparse.py.
#pragma once

#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[t, b] = x[t, b, index[t, b]]
template <class T, class I>
void subtensor_batched_index(Device& dev, In<T, 3> x, In<I, 2> index, Out<T, 2> out) {
  const int64_t d = x.size(2);
  if (d > 0) check_range("index", index, 0, d - 1, "the last number of a vector of `x`");
  for_each(dev, out, [=] KERNEL(int64_t t, int64_t b) {
    const int64_t j = index(t, b);
    out(t, b) = j >= 0 && j < d ? x(t, b, j) : T(d > 0 ? not_a_number<Accum<T>>() : Accum<T>(0));
  });
}

// d_x[t, b, j] = d_out[t, b] where j = index[t, b], else 0
template <class T, class I>
void subtensor_batched_index_grad(Device& dev, In<T, 3> x, In<I, 2> index, In<T, 2> d_out,
                                  Out<T, 3> d_x) {
  const int64_t d = x.size(2);
  if (d > 0) check_range("index", index, 0, d - 1, "the last number of a vector of `x`");
  for_each(dev, d_x, [=] KERNEL(int64_t t, int64_t b, int64_t j) {
    d_x(t, b, j) = j == static_cast<int64_t>(index(t, b)) ? d_out(t, b) : T(0.0f);
  });
}

// Entries of sequences: entry i of sequence b is at time(i, b), label(i, b).
template <class I>
struct Entries {
  In<I, 2> time, label;
  In<bool, 2> mask;
  int64_t times, labels;  // kAny where any label will do

  static constexpr int64_t kAny = -1;

  HOST_DEVICE int64_t count() const { return time.size(0); }
  // Where there is no place at all, CUDA takes no entry: it cannot refuse one.
  HOST_DEVICE bool takes(int64_t i, int64_t b) const {
    return times != 0 && labels != 0 && (!mask || mask(i, b));
  }
  HOST_DEVICE int64_t frame(int64_t i, int64_t b) const { return within(time(i, b), times - 1); }
  HOST_DEVICE int64_t place(int64_t i, int64_t b) const { return within(label(i, b), labels - 1); }

  // The weight of an entry that is within the array, else NaN.
  template <class T>
  HOST_DEVICE Accum<T> value(const In<T, 2>& weight, int64_t i, int64_t b) const {
    const bool inside = time(i, b) >= 0 && time(i, b) < times &&
                        (labels == kAny || (label(i, b) >= 0 && label(i, b) < labels));
    return inside ? Accum<T>(weight(i, b)) : not_a_number<Accum<T>>();
  }
  void check() const {
    check_range("time", time, 0, times - 1, "the last frame", mask);
    if (labels != kAny) check_range("label", label, 0, labels - 1, "the last label", mask);
  }
};

// The entries of each frame in their order.
struct Lists {
  View<int64_t, 2> end, order;  // where a frame's entries end, and all entries: per sequence

  template <class F>
  KERNEL void each(int64_t t, int64_t b, F f) const {
    for (int64_t at = t > 0 ? end(b, t - 1) : 0; at < end(b, t); ++at) f(order(b, at));
  }
};

template <class I>
Workspace<int64_t> memory_of_lists(Device& dev, const Entries<I>& entries, int64_t batch) {
  return dev.template workspace<int64_t>(batch * (entries.times + entries.count()));
}

// Sorted by counting, one sequence at a time.
template <class I>
Lists sort_by_frame(Device& dev, const Entries<I>& entries, int64_t batch, int64_t* memory) {
  const auto end = dense(memory, batch, entries.times);
  const auto order = dense(memory + batch * entries.times, batch, entries.count());
  for_each_item(dev, batch, [=] KERNEL(Team team, int64_t b) {
    team.each(0, entries.times, [=](int64_t t) { end(b, t) = 0; });
    team.sync();
    if (team.rank() > 0) return;  // one thread, to keep the order
    for (int64_t i = 0; i < entries.count(); ++i) {
      if (entries.takes(i, b)) ++end(b, entries.frame(i, b));
    }
    int64_t next = 0;
    for (int64_t t = 0; t < entries.times; ++t) {
      const int64_t own = end(b, t);
      end(b, t) = next;
      next += own;
    }
    for (int64_t i = 0; i < entries.count(); ++i) {
      if (entries.takes(i, b)) order(b, end(b, entries.frame(i, b))++) = i;
    }
  });
  return {end, order};
}

// out[t, b, j] = initial[t, b, j] + Σ_i weight[i, b] over the entries at (t, j), in their order
template <class T, class I>
void sparse_to_dense(Device& dev, In<T, 3> initial, In<I, 2> time, In<I, 2> label, In<T, 2> weight,
                     In<bool, 2> mask, Out<T, 3> out) {
  using A = Accum<T>;
  const int64_t batch = out.size(1), d = out.size(2);
  const Entries<I> entries{time, label, mask, out.size(0), d};
  entries.check();
  const auto memory = memory_of_lists(dev, entries, batch);
  const Lists lists = sort_by_frame(dev, entries, batch, memory.data());
  for_each_item<A>(
      dev, out.size(0) * batch, d,
      [=] KERNEL(Team team, int64_t row, Out<A, 1> sum) {
        const int64_t t = row / batch, b = row % batch;
        team.each(0, d, [=](int64_t j) { sum(j) = A(initial(t, b, j)); });
        team.sync();
        if (team.rank() == 0) {
          lists.each(t, b,
                     [=](int64_t i) { sum(entries.place(i, b)) += entries.value(weight, i, b); });
        }
        team.sync();
        team.each(0, d, [=](int64_t j) { out(t, b, j) = T(sum(j)); });
      },
      d);
}

// d_weight[i, b] = d_out[time[i, b], b, label[i, b]] if the entry takes part, else 0
template <class T, class I>
void sparse_to_dense_grad(Device& dev, In<T, 3> d_out, In<I, 2> time, In<I, 2> label,
                          In<bool, 2> mask, Out<T, 2> d_weight) {
  const Entries<I> entries{time, label, mask, d_out.size(0), d_out.size(2)};
  entries.check();
  for_each(dev, d_weight, [=] KERNEL(int64_t i, int64_t b) {
    const bool here = entries.takes(i, b);
    d_weight(i, b) = here ? d_out(entries.frame(i, b), b, entries.place(i, b)) : T(0.0f);
  });
}

// largest[t, b] = max(initial[t, b], weight[i, b], ..), argmax[t, b] the label of the first such
template <class T, class I>
void max_and_argmax_sparse(Device& dev, In<I, 2> time, In<I, 2> label, In<T, 2> weight,
                           In<T, 2> initial, In<I, 2> initial_argmax, In<bool, 2> mask,
                           Out<T, 2> largest, Out<I, 2> argmax) {
  const int64_t batch = largest.size(1);
  const Entries<I> entries{time, label, mask, largest.size(0), Entries<I>::kAny};
  entries.check();
  const auto memory = memory_of_lists(dev, entries, batch);
  const Lists lists = sort_by_frame(dev, entries, batch, memory.data());
  for_each(dev, largest, [=] KERNEL(int64_t t, int64_t b) {
    T best = initial(t, b);
    I where = initial_argmax(t, b);
    lists.each(t, b, [&](int64_t i) {
      const auto w = entries.value(weight, i, b), now = Accum<T>(best);
      if (w > now || (w != w && now == now)) {
        best = T(w);
        where = label(i, b);
      }
    });
    largest(t, b) = best;
    argmax(t, b) = where;
  });
}

}  // namespace nativeops
