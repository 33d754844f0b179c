// SPDX-License-Identifier: Apache-2.0
// Random bits as a function of a position: Philox 4x32-10 of Salmon, Moraes, Dror & Shaw 2011
// (Parallel random numbers: as easy as 1, 2, 3). There is no state to share or to keep: any thread
// of any device finds the bits of any position, again in the gradient.
#pragma once
#include <cstdint>

#include "nativeops/devices/view.h"

namespace nativeops {

struct PhiloxWords {
  uint32_t first, second, third, fourth;
};

// The four words for the counter (index, stream) under a key. The low and high halves of each are
// its words. A plain loop over it vectorises.
HOST_DEVICE inline PhiloxWords philox(uint64_t key, uint64_t index, uint64_t stream) {
  uint32_t a = static_cast<uint32_t>(index), b = static_cast<uint32_t>(index >> 32);
  uint32_t c = static_cast<uint32_t>(stream), d = static_cast<uint32_t>(stream >> 32);
  uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * a, second = uint64_t{0xCD9E8D57u} * c;
    a = static_cast<uint32_t>(second >> 32) ^ b ^ low;
    b = static_cast<uint32_t>(second);
    c = static_cast<uint32_t>(first >> 32) ^ d ^ high;
    d = static_cast<uint32_t>(first);
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return {a, b, c, d};
}

}  // namespace nativeops
