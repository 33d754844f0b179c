// SPDX-License-Identifier: Apache-2.0
// Kernels with one bug each, in the lines that say `bug`. Declared in planted.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

template <class T>
void missing_barrier(Device& dev, In<T, 2> x, Out<T, 2> out) {
  const int64_t n = x.size(1);
  for_each_item<T>(dev, x.size(0), n, [=] KERNEL(Team team, int64_t b, View<T, 1> row) {
    team.each(0, n, [=](int64_t i) { row(i) = x(b, i); });  // bug: no sync() after this
    team.each(0, n, [=](int64_t i) { out(b, i) = row(n - 1 - i); });
  });
}

template <class T>
void race_on_a_shared_value(Device& dev, In<T, 2> x, Out<T, 1> out) {
  for_each_item(dev, x.size(0), [=] KERNEL(Team team, int64_t b) {
    const auto sum = team.sum(0, x.size(1), [=](int64_t i) { return x(b, i); });
    out(b) = T(sum);  // bug: all threads write it
  });
}

template <class I>
void histogram_without_atomics(Device& dev, In<I, 2> index, Out<int32_t, 2> out) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t k) { out(b, k) = 0; });
  for_each_item(dev, index.size(0), [=] KERNEL(Team team, int64_t b) {
    team.each(0, index.size(1), [=](int64_t i) {
      const int64_t k = index(b, i);
      if (k >= 0 && k < 4) out(b, k) += 1;  // bug: atomicAdd is needed
    });
  });
}

template <class T>
void divergent_barrier(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each_item(dev, x.size(0), [=] KERNEL(Team team, int64_t b) {
    team.each(0, x.size(1), [=](int64_t i) { out(b, i) = x(b, i); });
    if (team.rank() < 3) {
      team.sync();  // bug
    } else {
      team.sync();  // bug
    }
  });
}

template <class T>
void write_past_the_end(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each_item(dev, x.size(0), [=] KERNEL(Team team, int64_t b) {
    const int64_t n = x.size(1);
    team.each(0, n, [=](int64_t i) { out(b, i) = x(b, i); });
    team.sync();
    if (team.rank() == 0 && b == x.size(0) - 1) out(b, n) = T(0);  // bug
  });
}

template <class T>
void read_past_the_end(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    const bool last = i + 1 == x.size(1);
    const T next = x(b, i + 1);  // bug
    out(b, i) = last ? x(b, i) : T(Accum<T>(x(b, i)) - Accum<T>(next));
  });
}

template <class T>
void wrong_sign_of_the_kernel(Device& dev, In<T, 2> x, Out<T, 2> out) {  // bug
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) { out(b, i) = x(b, i); });
}

template <class T>
void product(Device& dev, In<T, 2> x, In<T, 2> y, Out<T, 2> out) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    out(b, i) = T(Accum<T>(x(b, i)) * Accum<T>(y(b, i)));
  });
}
template <class T>
void wrong_sign(Device& dev, In<T, 2> x, In<T, 2> y, Out<T, 2> out) {
  product<T>(dev, x, y, out);
}
template <class T>
void forgotten_alone(Device& dev, In<T, 2> x, In<T, 2> y, Out<T, 2> out) {
  product<T>(dev, x, y, out);
}
template <class T>
void rule_for_numpy_alone(Device& dev, In<T, 2> x, In<T, 2> y, Out<T, 2> out) {
  product<T>(dev, x, y, out);
}
template <class T>
void forgotten_argument(Device& dev, In<T, 2> x, In<T, 2> y, Out<T, 2> out) {
  product<T>(dev, x, y, out);
}

template <class T>
void number_of_threads(Device& dev, In<T, 2> x, Out<T, 1> out) {  // bug
  using A = Accum<T>;
  const int64_t parts = dev.num_threads(), n = x.size(1);
  for_each(dev, out, [=] KERNEL(int64_t b) {
    A sum = 0;
    for (int64_t part = 0; part < parts; ++part) {
      A own = 0;
      for (int64_t i = n * part / parts; i < n * (part + 1) / parts; ++i) own += A(x(b, i));
      sum += own;
    }
    out(b) = T(sum);
  });
}

template <class T>
void number_shared_by_calls(Device& dev, In<T, 1> x, Out<T, 1> out) {
  static Accum<T> shared;  // bug: all calls have it, from whatever thread
  Accum<T>* const most = &shared;
  for_each_item(dev, 1, [=] KERNEL(Team team, int64_t) {
    const auto found = team.max(0, x.size(0), [=](int64_t i) { return Accum<T>(x(i)); });
    if (team.rank() == 0) *most = found;
  });
  for_each(dev, out, [=] KERNEL(int64_t i) { out(i) = T(x(i) - *most); });
}

template <class T>
void attribute_shared_by_calls(Device& dev, In<T, 1> x, Out<T, 1> out, double factor) {
  static Accum<T> table[64];  // bug: likewise, but the same for calls with equal attributes
  for (Accum<T>& one : table) one = Accum<T>(factor);
  Accum<T>* const own = table;
  for_each(dev, out, [=] KERNEL(int64_t i) { out(i) = T(x(i) * own[i % 64]); });
}

template <class T, class I>
void read_before_the_start(Device& dev, In<T, 1> x, In<I, 1> index, Out<T, 1> out) {
  fill(dev, out, [=] KERNEL(int64_t i) {
    return index(i) < x.size(0) ? x(index(i)) : T(0.0f);  // bug: below 0
  });
}

template <class T>
void sum_by_atomics(Device& dev, In<T, 1> x, Out<T, 0> out) {
  auto memory = dev.workspace<Accum<T>>(1);
  Accum<T>* const total = memory.data();
  launch(dev, 1, 1, [=] KERNEL() { *total = 0; });
  launch(dev, 64, 64, [=] KERNEL() {
    Accum<T> own = 0;
    for (int64_t i : range(x.size(0))) own += Accum<T>(x(i));
    const Accum<T> sum = block_sum(own);
    if (threadIdx.x == 0) atomicAdd(total, sum);  // bug: floats, in the order of the blocks
  });
  launch(dev, 1, 1, [=] KERNEL() { out() = T(*total); });
}

template <class T>
void reference_of_some(Device& dev, In<T, 1> x, Out<T, 1> out) {
  number_shared_by_calls<T>(dev, x, out);
}

template <class T>
void two_flags(Device& dev, In<T, 1> x, Out<T, 1> out, bool twice, bool thrice) {
  const int factor = twice ? 2 : thrice ? 3 : 1;  // bug: both
  for_each(dev, out, [=] KERNEL(int64_t i) { out(i) = T(factor * Accum<T>(x(i))); });
}

template <class T>
void write_past_the_workspace(Device& dev, In<T, 1> x, Out<T, 1> out) {
  auto memory = dev.workspace<T>(x.size(0));
  T* const copy = memory.data();
  for_each(dev, out, [=] KERNEL(int64_t i) { copy[i + 1] = x(i); });  // bug
  for_each(dev, out, [=] KERNEL(int64_t i) { out(i) = copy[i + 1]; });
}

template <class T>
void race_between_items(Device& dev, In<T, 1> x, Out<T, 1> out) {
  for_each(dev, out, [=] KERNEL(int64_t k) { out(k) = T(0.0f); });
  for_each_item(dev, x.size(0), [=] KERNEL(Team team, int64_t i) {
    Accum<T> slow = x(i);  // so that threads are at it together, however busy the machine is
    for (int k = 0; k < 100; ++k) slow = slow / (1 + slow * slow);
    if (team.rank() == 0) out(i % 4) = T(out(i % 4) + slow);  // bug
  });
}

template <class T>
void overflowing_size(Device& dev, In<T, 1> x, Out<T, 0> out) {
  const int n = x.size(0);  // bug
  for_each_item(dev, 1, [=] KERNEL(Team team, int64_t) {
    const auto sum = team.sum(0, n, [=](int64_t i) { return x(i); });
    if (team.rank() == 0) out() = T(sum);
  });
}

template <class T>
void overflowing_index(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each(dev, out, [=] KERNEL(int b, int i) {  // bug
    out(b, i) = T(2 * Accum<T>(x(b, i)));
  });
}

template <class T>
void overflowing_product(Device& dev, In<T, 2> x, Out<T, 2> out) {
  const int columns = static_cast<int>(x.size(1));
  const int total = static_cast<int>(x.size(0)) * columns;  // bug
  for_each_item(dev, total < 0 ? 0 : total, [=] KERNEL(Team team, int64_t at) {
    const int64_t i = at / columns, k = at % columns;
    if (team.rank() == 0) out(i, k) = T(2 * Accum<T>(x(i, k)));
  });
}

template <class T>
void sum_in_single_precision(Device& dev, In<T, 1> x, Out<T, 0> out) {
  for_each_item(dev, 1, [=] KERNEL(Team team, int64_t) {
    float sum = 0;  // bug: Accum<T>, as it does not grow beyond 2^24 times what is added
    for (int64_t i = 0; i < x.size(0); ++i) sum += static_cast<float>(x(i));
    if (team.rank() == 0) out() = T(sum);
  });
}

template <class T>
void dependent_axis(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each_item(dev, x.size(0), [=] KERNEL(Team team, int64_t b) {
    const int64_t n = x.size(1);
    const auto sum = team.sum(0, n, [=](int64_t i) { return Accum<T>(x(b, i)); });
    team.each(0, n, [=](int64_t i) { out(b, i) = T(Accum<T>(x(b, i)) - sum / n); });
  });
}

template <class T>
void reads_what_it_overwrote(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    out(b, i) = x(b, i + 1 < x.size(1) ? i + 1 : i);  // bug: another thread may have written it
  });
}

template <class T>
void overwrites_what_it_reads(Device& dev, In<T, 2> x, Out<T, 2> out) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    out(b, i) = x(b, x.size(1) - 1 - i);  // bug: a number before it may have been written
  });
}

template <class T>
void negative_shift(Device& dev, In<T, 2> x, Out<T, 2> out, int64_t k) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    const int64_t n = x.size(1);
    out(b, i) = x(b, (i + n - abs(k) % n) % n);  // bug: where k is below 0 it turns the other way
  });
}

template <class T>
void negative_slope(Device& dev, In<T, 2> x, Out<T, 2> out, double slope) {
  for_each(dev, out, [=] KERNEL(int64_t b, int64_t i) {
    const Accum<T> number = x(b, i);
    out(b, i) = T(max2(number, Accum<T>(slope) * number));  // bug: not where slope is below 0
  });
}

template <class T>
void second_block(Device& dev, In<T, 1> x, Out<T, 1> out) {
  for_each(dev, out, [=] KERNEL(int64_t i) {
    out(i) = T(Accum<T>(x(i)) - Accum<T>(x(i / 256 * 256)));  // bug: the first of each block
  });
}

template <class T>
void write_of_what_nobody_keeps(Device& dev, In<T, 2> x, Out<T, 2> twice, Out<T, 2> same) {
  for_each(dev, twice, [=] KERNEL(int64_t b, int64_t i) {
    twice(b, i) = T(Accum<T>(x(b, i)) + Accum<T>(x(b, i)));
    same(b, i) = x(b, i);  // bug: without a gradient there is no `same`
  });
}

}  // namespace nativeops
