// SPDX-License-Identifier: Apache-2.0
// for_each_item with many threads: an item's team is a block.
#pragma once
#include <cstdint>

#include "nativeops/devices/blocks/reduce.h"
#include "nativeops/devices/operand.h"
#include "nativeops/devices/view.h"

namespace nativeops {

// How many teams suit an op that itself splits one long loop among them: of one warp each, they
// are few for a GPU.
constexpr int64_t kManyTeams = 512;

// The threads of a team that go in step: for what is too short for the whole team.
struct Warp {
  KERNEL int rank() const { return static_cast<int>(threadIdx.x) % size(); }
  HOST_DEVICE static constexpr int size() { return 32; }
#if defined(NATIVEOPS_CPU_THREADS)
  void sync(const char* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    __syncwarp(0xffffffffu, file, line);
  }
#else
  KERNEL void sync() const { __syncwarp(); }
#endif

  // As those of a team; but what others of the warp wrote is visible after sync() alone.
  template <class F>
  KERNEL void each(int64_t lo, int64_t hi, F f) const {
    for (int64_t i = lo + rank(); i < hi; i += size()) f(i);
  }
  template <class F>
  KERNEL TeamValue<F> sum(int64_t lo, int64_t hi, F f) const {
    TeamValue<F> value(0);
    each(lo, hi, [&](int64_t i) { value = value + f(i); });
    return warp_reduce(value, FoldSum{});
  }
  template <class F>
  KERNEL TeamValue<F> max(int64_t lo, int64_t hi, F f) const {
    auto value = lowest<TeamValue<F>>();
    each(lo, hi, [&](int64_t i) { value = max_or_nan(value, f(i)); });
    return warp_reduce(value, FoldMax{});
  }
};

struct Team {
  KERNEL int rank() const { return static_cast<int>(threadIdx.x); }
  KERNEL int size() const { return static_cast<int>(blockDim.x); }
#if defined(NATIVEOPS_CPU_THREADS)
  void sync(const char* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    nativeops::sync(file, line);
  }
#else
  KERNEL void sync() const { nativeops::sync(); }
#endif

  // f(i) for lo <= i < hi, in any order; between two phases that share data: sync(). With the same
  // lo, an i is always the same thread's.
  template <class F>
  KERNEL void each(int64_t lo, int64_t hi, F f) const {
    NATIVEOPS_ROLLED
    for (int64_t i = lo + rank(); i < hi; i += size()) f(i);
  }

  // row(i) = f(i) for every i, in any order: f must not read what is written here at another index.
  // An i is the same thread's as in `each` from 0 on.
  template <class T, class F>
  KERNEL void fill(View<T, 1> row, F f) const {
    in_batches(rank(), row.size(0), size(), f, [&](int64_t i, auto value) { row(i) = T(value); });
  }

  // to(k) = Σ_i f(i, k) for every k, over lo <= i < hi in order. A k is the same thread's as in
  // `each` from 0 on.
  template <class T, class F>
  KERNEL void sums(View<T, 1> to, int64_t lo, int64_t hi, F f) const {
    each(0, to.size(0), [&](int64_t k) {
      T sum(0);
      const auto term = [&](int64_t i) { return f(i, k); };
      in_batches(lo, hi, 1, term, [&](int64_t, auto value) { sum += static_cast<T>(value); });
      to(k) = sum;
    });
  }

  // f(warp, i) for lo <= i < hi: each warp of the team has its own. Some threads of a warp may
  // return early, but not before its last sum, max or sync.
  template <class F>
  KERNEL void each_by_warp(int64_t lo, int64_t hi, F f) const {
    const int64_t warps = size() / Warp::size();
    for (int64_t i = lo + rank() / Warp::size(); i < hi; i += warps) f(Warp{}, i);
  }

  // The reductions of f(i) over lo <= i < hi, known to all threads of the team. All of them must
  // call, and what they wrote before is visible to all afterwards, as after sync().
  template <class F>
  KERNEL TeamValue<F> sum(int64_t lo, int64_t hi, F f) const {
    return reduce(lo, hi, TeamValue<F>(0), f, FoldSum{});
  }
  // The sums of both numbers of f(i), TwoSums.
  template <class F, class V = decltype(std::declval<F>()(int64_t{}).first)>
  KERNEL TwoSums<V> two_sums(int64_t lo, int64_t hi, F f) const {
    return {sum(lo, hi, [=](int64_t i) { return f(i).first; }),
            sum(lo, hi, [=](int64_t i) { return f(i).second; })};
  }
  // NaN if one is NaN; of nothing: the infinity (or the integer) that any number beats.
  template <class F>
  KERNEL TeamValue<F> max(int64_t lo, int64_t hi, F f) const {
    return reduce(lo, hi, lowest<TeamValue<F>>(), f, FoldMax{});
  }
  template <class F>
  KERNEL TeamValue<F> min(int64_t lo, int64_t hi, F f) const {
    return reduce(lo, hi, highest<TeamValue<F>>(), f, FoldMin{});
  }
  template <class F>
  KERNEL bool any(int64_t lo, int64_t hi, F f) const {
    return reduce(lo, hi, 0, f, FoldMax{}) != 0;
  }

 private:
  template <class V, class F, class Fold>
  KERNEL V reduce(int64_t lo, int64_t hi, V init, F f, Fold fold) const {
    V value = init;
    nativeops::sync();  // f may read what other threads wrote; and all have read the last parts
    in_batches(lo + rank(), hi, size(), f,
               [&](int64_t, auto number) { value = fold(value, static_cast<V>(number)); });
    return block_reduce_by(parts<V>(), value, fold);
  }
  template <class V>
  KERNEL static V* parts() {
    SHARED V part[32];
    return part;
  }
};

template <class F>
struct ItemKernel {
  F f;
  int64_t n;

  KERNEL void operator()() const {
    for (int64_t item = blockIdx.x; item < n; item += gridDim.x) {
      f(Team{}, item);
      sync();  // the next item uses the same shared memory
    }
  }
};

// The threads of a team whose loops have so many turns: whole warps.
inline unsigned team_threads(int64_t width) {
  constexpr int64_t kWarp = 32;
  const int64_t warps = round_up(width, kWarp);
  return static_cast<unsigned>(max2(kWarp, min2<int64_t>(kBlockThreads, warps)));
}

// f(team, item) for 0 <= item < n: a team of threads for every item.
template <class F>
void for_each_item(Device& dev, int64_t n, F f, int64_t width = kBlockThreads) {
  const unsigned grid = static_cast<unsigned>(min2(n, kMaxGrid));
  launch(dev, grid, team_threads(width), ItemKernel<F>{f, n});
}
// By teams of as many threads as there can be: for few items, whose steps wait for one another.
template <class F>
void for_each_large_item(Device& dev, int64_t n, F f) {
  const unsigned grid = static_cast<unsigned>(min2(n, kMaxGrid));
  launch_large(dev, grid, ItemKernel<F>{f, n});
}

template <class T, class F>
struct ScratchKernel {
  F f;
  int64_t n, count;
  T* memory;  // null: in shared memory

  KERNEL void operator()() const {
    T* mine = memory ? memory + blockIdx.x * count : static_cast<T*>(shared_scratch());
    for (int64_t item = blockIdx.x; item < n; item += gridDim.x) {
      f(Team{}, item, View<T, 1>{mine, {count}, {1}});
      sync();  // the next item uses the same memory
    }
  }
};

// The same with `count` uninitialised values for each team, shared by its threads: in shared memory
// where they fit, else in a workspace of at most 1024 such parts.
template <class T, class F>
void for_each_item(Device& dev, int64_t n, int64_t count, F f, int64_t width = kBlockThreads) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  const bool fits = bytes <= kScratchBytes;
  const int64_t grid = min2(n, fits ? kMaxGrid : min2<int64_t>(kMaxGrid, 1024));
  auto memory = dev.template workspace<T>(fits ? 0 : grid * count);
  launch(dev, static_cast<unsigned>(grid), team_threads(width),
         ScratchKernel<T, F>{f, n, count, memory.data()}, fits ? bytes : 0);
}

}  // namespace nativeops
