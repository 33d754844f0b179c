// SPDX-License-Identifier: Apache-2.0
// Dropout whose mask follows from a seed. Declared in dropout.py.
#pragma once
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/philox.h"

namespace nativeops {

// out[e] = x[e] / (1 - p) where bits[e] ≥ ⌊p·2^32⌋, else 0
template <class T, class I>
void dropout(Device& dev, In<T, 3> x, In<I, 1> seed, Out<T, 3> out, double p, int64_t stream) {
  using A = Accum<T>;
  const bool some = p < 1;
  const uint32_t least = some ? static_cast<uint32_t>(p * 0x1p32) : 0;
  const A scale = some ? static_cast<A>(1 / (1 - p)) : A(0);
  const int64_t batch = out.size(1), width = out.size(2);
  for_each(
      dev, out,
      [=] KERNEL(int64_t t, int64_t b, int64_t j) {
        const uint64_t key = static_cast<uint64_t>(static_cast<int64_t>(seed(0)));
        const uint64_t index = static_cast<uint64_t>((t * batch + b) * width + j);
        const bool stays = some && philox(key, index, static_cast<uint64_t>(stream)) >= least;
        out(t, b, j) = T(stays ? A(x(t, b, j)) * scale : A(0));
      },
      60);
}

}  // namespace nativeops
