// SPDX-License-Identifier: Apache-2.0
// How much of the history of a walk over frames is kept: all of it, or a part of √frames at a time,
// the others being computed again from the rows that they begin with.
#pragma once
#include <cstdint>

#include "nativeops/devices/math.h"
#include "nativeops/devices/view.h"

namespace nativeops {

// Numbers of frames per part, and of parts: the smallest of which the square is enough.
HOST_DEVICE inline int64_t root_of(int64_t frames) {
  int64_t root = 1;
  while (root * root < frames) ++root;
  return root;
}

constexpr int64_t kWholeHistory = 1 << 22;  // up to so many numbers are kept: no frame twice

HOST_DEVICE inline bool is_whole(int64_t frames, int64_t width) {
  return frames * width <= kWholeHistory;
}

// Frames whose rows of so many numbers are in memory at once.
HOST_DEVICE inline int64_t part_of(int64_t frames, int64_t width) {
  return is_whole(frames, width) ? max2<int64_t>(frames, 1) : root_of(frames);
}

}  // namespace nativeops
