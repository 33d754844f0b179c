// SPDX-License-Identifier: Apache-2.0
// Dropout whose mask follows from a seed. Declared in dropout.py.
#pragma once
#include "nativeops/devices/kernel.h"
#include "nativeops/devices/philox.h"

namespace nativeops {

// What happens to each number: out[e] = x[e] / (1 - p) where bits[e] ≥ ⌊p·2^32⌋, else 0.
template <class T>
struct Dropping {
  using A = Accum<T>;

  uint64_t stream;
  uint32_t least;
  A scale;

  Dropping(double p, int64_t stream)
      : stream(static_cast<uint64_t>(stream)),
        least(p < 1 ? static_cast<uint32_t>(p * 0x1p32) : 0),
        scale(p < 1 ? static_cast<A>(1 / (1 - p)) : A(0)) {}

  HOST_DEVICE T of(T x, uint32_t bits) const {
    return T(bits >= least && scale != 0 ? A(x) * scale : A(0));
  }
  // Four elements share the words of a counter.
  HOST_DEVICE T of(T x, uint64_t key, uint64_t index) const {
    const PhiloxWords words = philox(key, index / 4, stream);
    const uint32_t low = index % 2 == 0 ? words.first : words.second;
    const uint32_t high = index % 2 == 0 ? words.third : words.fourth;
    return of(x, index % 4 < 2 ? low : high);
  }
};

template <class I>
HOST_DEVICE uint64_t key_of(I seed) {
  return static_cast<uint64_t>(static_cast<int64_t>(seed));
}

template <class T, class I>
void dropout(Device& dev, In<T, 3> x, In<I, 1> seed, Out<T, 3> out, double p, int64_t stream) {
  const Dropping<T> dropping(p, stream);
  const int64_t batch = out.size(1), width = out.size(2);
  for_each(
      dev, out,
      [=] KERNEL(int64_t t, int64_t b, int64_t j) {
        const uint64_t index = static_cast<uint64_t>((t * batch + b) * width + j);
        out(t, b, j) = dropping.of(x(t, b, j), key_of(seed(0)), index);
      },
      60);
}

}  // namespace nativeops
