// SPDX-License-Identifier: Apache-2.0
// for_each_item on the CPU: an item's team is one thread.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/block.h"
#include "nativeops/devices/cpu/lanes.h"
#include "nativeops/devices/operand.h"
#include "nativeops/devices/view.h"

namespace nativeops {

// How many teams suit an op that itself splits one long loop among them.
constexpr int64_t kManyTeams = 64;

struct Team;
using Warp = Team;  // the threads of a team that go in step on a GPU

struct Team {
  int rank() const { return 0; }
  static constexpr int size() { return 1; }
  void sync() const {}

  // f(i) for lo <= i < hi, in any order; between two phases that share data: sync(). With the same
  // lo, an i is always the same thread's. All that f calls is inlined, as a call that remains keeps
  // the loop from vectors.
  template <class F>
  [[gnu::flatten]] void each(int64_t lo, int64_t hi, F f) const {
    NATIVEOPS_IVDEP
    for (int64_t i = lo; i < hi; ++i) f(i);
  }

  // row(i) = f(i) for every i, in any order: f must not read what is written here at another index.
  // An i is the same thread's as in `each` from 0 on.
  template <class T, class F>
  void fill(View<T, 1> row, F f) const {
    each(0, row.size(0), [=](int64_t i) { row(i) = T(f(i)); });
  }

  // to(k) = Σ_i f(i, k) for every k, over lo <= i < hi in order. A k is the same thread's as in
  // `each` from 0 on.
  template <class T, class F>
  void sums(View<T, 1> to, int64_t lo, int64_t hi, F f) const {
    each(0, to.size(0), [=](int64_t k) { to(k) = T(0); });
    for (int64_t i = lo; i < hi; ++i) each(0, to.size(0), [=](int64_t k) { to(k) += f(i, k); });
  }

  // f(warp, i) for lo <= i < hi: each warp of the team has its own.
  template <class F>
  void each_by_warp(int64_t lo, int64_t hi, F f) const {
    for (int64_t i = lo; i < hi; ++i) f(*this, i);
  }

  // The reductions of f(i) over lo <= i < hi, known to all threads of the team. All of them must
  // call, and what they wrote before is visible to all afterwards, as after sync().
  template <class F>
  [[gnu::always_inline]] inline TeamValue<F> sum(int64_t lo, int64_t hi, F f) const {
    using V = TeamValue<F>;
    return reduce(lo, hi, V(0), f, [](auto a, auto b) { return a + b; });
  }
  // The sums of both numbers of f(i), TwoSums, in one pass.
  template <class F, class V = decltype(std::declval<F>()(int64_t{}).first)>
  [[gnu::always_inline]] inline TwoSums<V> two_sums(int64_t lo, int64_t hi, F f) const {
    const auto fold = [](auto a, auto b) { return a + b; };
    const int64_t count = max2<int64_t>(hi - lo, 0);
    if (count > kShort) return add_many<V>(lo, hi, f, fold);
    alignas(64) V first[kShort], second[kShort];
    put_both(first, second, count, lo, f);
    return {reduce_few(first, count, V(0), fold), reduce_few(second, count, V(0), fold)};
  }
  // NaN if one is NaN; of nothing: the infinity (or the integer) that any number beats.
  template <class F>
  [[gnu::always_inline]] inline TeamValue<F> max(int64_t lo, int64_t hi, F f) const {
    using V = TeamValue<F>;
    return reduce(lo, hi, lowest<V>(), f, [](auto a, auto b) { return max_or_nan(a, b); });
  }
  template <class F>
  [[gnu::always_inline]] inline TeamValue<F> min(int64_t lo, int64_t hi, F f) const {
    using V = TeamValue<F>;
    return reduce(lo, hi, highest<V>(), f, [](auto a, auto b) { return min_or_nan(a, b); });
  }
  template <class F>
  bool any(int64_t lo, int64_t hi, F f) const {
    for (int64_t i = lo; i < hi; ++i) {
      if (f(i)) return true;
    }
    return false;
  }

 private:
  static constexpr int kFew = 16, kShort = 64, kRow = 256;

  // The values are put into a row first: a loop over f alone becomes vectors for each stride of a
  // view. A short one is inlined: a call takes as long as 32 numbers.
  template <class V, class F, class Fold>
  [[gnu::always_inline]] static inline V reduce(int64_t lo, int64_t hi, V init, const F& f,
                                                Fold fold) {
    const int64_t count = max2<int64_t>(hi - lo, 0);
    if (count > kShort) return reduce_many(lo, hi, init, f, fold);
    alignas(64) V row[kShort];
    put_values(row, count, lo, f);
    return reduce_few(row, count, init, fold);
  }

  // Rows of kRow numbers in 64 interleaved parts, which fill several vectors, and the last of a
  // long row by itself: an order that is the same for every instruction set.
  template <class V, class Fold>
  struct Parts {
    using Many = Lanes<V, kFew>;
    Fold fold;
    Many part[4];

    Parts(V init, Fold fold)
        : fold(fold), part{Many::all(init), Many::all(init), Many::all(init), Many::all(init)} {}
    void add(const V* row) {
      for (int i = 0; i < kRow; i += 4 * kFew) {
#pragma GCC unroll 4
        for (int p = 0; p < 4; ++p) part[p] = part[p].folded(Many::load(row + i + p * kFew), fold);
      }
    }
    V with(V last) const {
      const Many all = part[0].folded(part[1], fold).folded(part[2].folded(part[3], fold), fold);
      return fold(fold_lanes(all, fold), last);
    }
  };

  // Longer rows. Never inlined, so that what calls it stays small and is inlined itself; f by
  // reference, as a copy of its views would be waited for.
  template <class V, class F, class Fold>
  [[gnu::noinline]] static V reduce_many(int64_t lo, int64_t hi, V init, const F& f, Fold fold) {
    alignas(64) V row[kRow];
    Parts<V, Fold> parts(init, fold);
    for (; hi - lo > kRow; lo += kRow) {
      put_values(row, kRow, lo, f);
      parts.add(row);
    }
    put_values(row, hi - lo, lo, f);
    return parts.with(reduce_few(row, hi - lo, init, fold));
  }

  template <class V, class F, class Fold>
  [[gnu::noinline]] static TwoSums<V> add_many(int64_t lo, int64_t hi, const F& f, Fold fold) {
    alignas(64) V first[kRow], second[kRow];
    Parts<V, Fold> a(V(0), fold), b(V(0), fold);
    for (; hi - lo > kRow; lo += kRow) {
      put_both(first, second, kRow, lo, f);
      a.add(first);
      b.add(second);
    }
    put_both(first, second, hi - lo, lo, f);
    return {a.with(reduce_few(first, hi - lo, V(0), fold)),
            b.with(reduce_few(second, hi - lo, V(0), fold))};
  }

  template <class V, class F>
  [[gnu::flatten]] static void put_both(V* first, V* second, int64_t count, int64_t lo,
                                        const F& f) {
    NATIVEOPS_IVDEP
    for (int64_t i = 0; i < count; ++i) {
      const TwoSums<V> both = f(lo + i);
      first[i] = both.first;
      second[i] = both.second;
    }
  }

  template <class V, class F>
  [[gnu::flatten]] static void put_values(V* row, int64_t count, int64_t lo, const F& f) {
    for (int64_t i = 0; i < count; ++i) row[i] = static_cast<V>(f(lo + i));
  }

  // The same of a short row, in the vectors of 16 and of 8 numbers that it has, and one by one: to
  // wait for what has just been stored takes longer than what is computed here.
  template <class V, class Fold>
  [[gnu::always_inline]] static inline V reduce_few(const V* row, int64_t count, V init,
                                                    Fold fold) {
    using Many = Lanes<V, kFew>;
    using Half = typename Many::Half;
    Half half = Half::all(init);
    int64_t i = 0;
    if (count >= kFew) {
      Many sum = Many::load(row);
      for (i = kFew; i + kFew <= count; i += kFew) sum = sum.folded(Many::load(row + i), fold);
      half = sum.halved(fold);
    }
    if (count - i >= kFew / 2) {
      half = half.folded(Half::load(row + i), fold);
      i += kFew / 2;
    }
    V tail = init;
    const int left = static_cast<int>(count - i) & (kFew / 2 - 1);
    for (int p = 0; p < left; ++p) tail = fold(tail, row[i + p]);
    return fold(fold_lanes(half, fold), tail);
  }
};

// body(low, high) for parts of [0, n): a task of its own would cost more than a small item.
template <class F>
void for_parts_of_items(Device& dev, int64_t n, F body) {
  constexpr int64_t kParts = 4096;
  const int64_t size = ceil_div(n, kParts);
  if (n > 0) {
    dev.parallel(ceil_div(n, size),
                 [&](int64_t part) { body(part * size, min2(n, (part + 1) * size)); });
  }
}

// f(team, item) for 0 <= item < n: a team of threads for every item.
//   for_each_item(dev, n, [=] KERNEL(Team team, int64_t item) {
//     team.each(0, d, [=](int64_t i) { ... });  team.sync();  ... });
// Where a team is threads of a GPU, it has no more than its loops have turns: their `width`.
template <class F>
void for_each_item(Device& dev, int64_t n, F f, int64_t /*width*/ = 0) {
  for_parts_of_items(dev, n, [&](int64_t low, int64_t high) {
    for (int64_t item = low; item < high; ++item) f(Team{}, item);
  });
}

// The same for few items, whose steps wait for one another: on a GPU by teams of as many threads as
// there can be.
template <class F>
void for_each_large_item(Device& dev, int64_t n, F f) {
  for_each_item(dev, n, f);
}

// The same with `count` uninitialised values for each team, shared by its threads.
//   for_each_item<float>(dev, n, count, [=] KERNEL(Team team, int64_t item, Out<float, 1> s) {..});
template <class T, class F>
void for_each_item(Device& dev, int64_t n, int64_t count, F f, int64_t /*width*/ = 0) {
  for_parts_of_items(dev, n, [&](int64_t low, int64_t high) {
    Workspace<T> scratch = dev.workspace<T>(count);
    for (int64_t item = low; item < high; ++item) {
      f(Team{}, item, View<T, 1>{scratch.data(), {count}, {1}});
    }
  });
}

}  // namespace nativeops
