// SPDX-License-Identifier: Apache-2.0
// Dropout of numbers that lie one beside the other, on the CPU: the words of a counter are computed
// once for four numbers. Declared in dropout.py.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nativeops/devices/cpu/dense.h"
#include "nativeops/ops/dropout.h"

namespace nativeops::tuned {

// Numbers 4·counter .. 4·(counter + n) - 1, of which x and out are the first.
template <class T>
void drop_some(const Dropping<T>& dropping, uint64_t key, uint64_t counter, const T* __restrict x,
               T* __restrict out, int64_t n) {
  const Dropping<T> own = dropping;
  for (int64_t i = 0; i < n; ++i) {
    const PhiloxWords words = philox(key, counter + static_cast<uint64_t>(i), own.stream);
    out[4 * i] = own.of(x[4 * i], words.first);
    out[4 * i + 1] = own.of(x[4 * i + 1], words.second);
    out[4 * i + 2] = own.of(x[4 * i + 2], words.third);
    out[4 * i + 3] = own.of(x[4 * i + 3], words.fourth);
  }
}

template <class T, class I>
void dropout(Device& dev, In<T, 3> x, In<I, 1> seed, Out<T, 3> out, double p, int64_t stream) {
  constexpr int64_t kPart = 4096;
  if (!is_dense(x) || !is_dense(out)) {
    return nativeops::dropout<T, I>(dev, x, seed, out, p, stream);
  }
  const Dropping<T> dropping(p, stream);
  const uint64_t key = key_of(seed(0));
  const int64_t count = out.count();
  dev.parallel(ceil_div(count, kPart), [=](int64_t part) {
    const int64_t first = part * kPart, n = std::min(kPart, count - first);
    const uint64_t counter = static_cast<uint64_t>(first / 4);
    drop_some(dropping, key, counter, x.data + first, out.data + first, n / 4);
    for (int64_t e = first + n / 4 * 4; e < first + n; ++e) {
      out.data[e] = dropping.of(x.data[e], key, static_cast<uint64_t>(e));
    }
  });
}

}  // namespace nativeops::tuned
