// SPDX-License-Identifier: Apache-2.0
// Numbers in the order of their groups: a counting sort, whose result is the same every time.
#pragma once
#include <cstdint>

#include "nativeops/devices/kernel.h"

namespace nativeops {
namespace in_order {

// Parts of the numbers, each with a place of each group: first how many the part has of it, then
// where these begin, then where the next of them goes.
struct Parts {
  int64_t n;
  View<int64_t, 2> place;  // part, group

  HOST_DEVICE int64_t count() const { return place.size(0); }
  HOST_DEVICE int64_t low(int64_t part) const { return part * n / count(); }
};

template <class Group>
void count(Device& dev, Parts parts, Group group) {
  for_each_item(dev, parts.count(), [=] KERNEL(Team team, int64_t part) {
    team.each(parts.low(part), parts.low(part + 1), [=](int64_t i) {
      const int64_t g = group(i);
      if (g >= 0) atomicAdd(&parts.place(part, g), int64_t{1});
    });
  });
}

// Which of two groups comes first depends on the threads: `taken` counts the places that some have.
inline void find_places(Device& dev, Parts parts, View<int64_t, 2> range, int64_t* taken) {
  constexpr int64_t kRead = 8;  // at a time, as a thread of a GPU waits for them all as for one
  const auto find = [=] KERNEL(int64_t group) {
    int64_t total = 0;
    for (int64_t part = 0; part < parts.count(); ++part) total += parts.place(part, group);
    int64_t next = range(group, 0) = atomicAdd(taken, total);
    range(group, 1) = next + total;
    for (int64_t first = 0; first < parts.count(); first += kRead) {
      int64_t own[kRead];
      for (int k = 0; k < kRead; ++k) {
        own[k] = first + k < parts.count() ? parts.place(first + k, group) : 0;
      }
      for (int k = 0; k < kRead; ++k) {
        if (first + k < parts.count()) parts.place(first + k, group) = next;
        next += own[k];
      }
    }
  };
  for_each(dev, at(transpose(range), 0), find, 4 * parts.count());
}

// A part is the work of one warp, to keep the order: of as many numbers as it has threads, each
// counts those before it in the same group. On the CPU this is one number.
template <class Group, class Value>
void put(Device& dev, Parts parts, Group group, Value value, View<int64_t, 1> order) {
  const auto put = [=] KERNEL(Team team, int64_t part) {
    const int64_t low = parts.low(part), high = parts.low(part + 1);
    const int rank = team.rank();
    int64_t coming = low + rank < high ? group(low + rank) : -1;
    for (int64_t i = low + rank; i - rank < high; i += team.size()) {
      const int64_t own = coming, next = i + team.size();
      coming = next < high ? group(next) : -1;  // read before it is waited for
      const int64_t first = own < 0 ? 0 : parts.place(part, own);
      int before = 0, same = 0;
      for (int lane = 0; lane < team.size(); ++lane) {
        const bool is_same = __shfl_sync(0xffffffffu, own, lane) == own;
        same += is_same;
        before += is_same && lane < rank;
      }
      __syncwarp();
      if (own >= 0) order(first + before) = value(i);
      if (own >= 0 && before == 0) parts.place(part, own) = first + same;
      __syncwarp();
    }
  };
  for_each_item(dev, parts.count(), put, /*width=*/1);
}

}  // namespace in_order

// value(i) of all 0 <= i < n in the order of i, apart for each group: from range(g, 0) to
// range(g, 1) of `order` for those with group(i) = g. A negative group takes no part.
//
// Parts count what they have of each group, each group finds its place, and the parts put their
// numbers there. Which group comes first may differ from call to call; what is in one does not.
// Memory: at most n numbers and those of one part on the CPU, eight times as many on a GPU.
template <class Group, class Value>
void put_in_order(Device& dev, int64_t n, Group group, Value value, View<int64_t, 2> range,
                  View<int64_t, 1> order) {
  constexpr int64_t kMost = kManyTeams;
  const int64_t groups = range.size(0);
  const int64_t count = min2(kMost, 1 + kMost / 64 * n / (4096 + groups));
  auto memory = dev.workspace<int64_t>(1 + count * groups);
  const View<int64_t, 1> zeros = dense(memory.data(), 1 + count * groups);
  const in_order::Parts parts{n, dense(memory.data() + 1, count, groups)};
  fill(dev, zeros, [=] KERNEL(int64_t) { return 0; });
  in_order::count(dev, parts, group);
  in_order::find_places(dev, parts, range, memory.data());
  in_order::put(dev, parts, group, value, order);
}

}  // namespace nativeops
