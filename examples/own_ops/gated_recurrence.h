// SPDX-License-Identifier: Apache-2.0
// A gated recurrence over time, and its gradient. Declared in gated_recurrence.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// How many channels a team has: it walks through time with them, on its own.
constexpr int64_t kChannels = 256;

// out[t] = state = f[t] · state + (1 - f[t]) · x[t], from state = h0 on
template <class T>
void gated_recurrence(Device& dev, In<T, 3> x, In<T, 3> f, In<T, 2> h0, Out<T, 3> out) {
  using A = Accum<T>;
  const int64_t steps = x.size(1), n = x.size(2), teams = ceil_div(n, kChannels);
  const int64_t all = x.size(0) * teams;
  for_each_item<A>(dev, all, kChannels, [=] KERNEL(Team team, int64_t item, View<A, 1> state) {
    const int64_t b = item / teams, first = item % teams * kChannels;
    const int64_t last = min2(n, first + kChannels);
    team.each(first, last, [=](int64_t k) { state(k - first) = A(h0(b, k)); });
    for (int64_t t = 0; t < steps; ++t) {
      team.sync();
      team.each(first, last, [=](int64_t k) {
        const A keep = f(b, t, k), h = keep * state(k - first) + (1 - keep) * A(x(b, t, k));
        state(k - first) = h;
        out(b, t, k) = T(h);
      });
    }
  });
}

// Backwards in time, with d = d_out[t] + back and back = f[t+1] · d of the step before, 0 at first:
// d_x[t] = (1 - f[t]) · d    d_f[t] = (out[t-1] - x[t]) · d    d_h0 = back in the end
template <class T>
void gated_recurrence_grad(Device& dev, In<T, 3> x, In<T, 3> f, In<T, 2> h0, In<T, 3> out,
                           In<T, 3> d_out, Out<T, 3> d_x, Out<T, 3> d_f, Out<T, 2> d_h0) {
  using A = Accum<T>;
  const int64_t steps = x.size(1), n = x.size(2), teams = ceil_div(n, kChannels);
  const int64_t all = x.size(0) * teams;
  for_each_item<A>(dev, all, kChannels, [=] KERNEL(Team team, int64_t item, View<A, 1> back) {
    const int64_t b = item / teams, first = item % teams * kChannels;
    const int64_t last = min2(n, first + kChannels);
    team.each(first, last, [=](int64_t k) { back(k - first) = 0; });
    for (int64_t t = steps - 1; t >= 0; --t) {
      team.sync();
      const In<T, 1> before = t > 0 ? at(at(out, b), t - 1) : at(h0, b);
      team.each(first, last, [=](int64_t k) {
        const A keep = f(b, t, k), d = A(d_out(b, t, k)) + back(k - first);
        d_x(b, t, k) = T((1 - keep) * d);
        d_f(b, t, k) = T((A(before(k)) - A(x(b, t, k))) * d);
        back(k - first) = keep * d;
      });
    }
    team.sync();
    team.each(first, last, [=](int64_t k) { d_h0(b, k) = T(back(k - first)); });
  });
}

}  // namespace nativeops
