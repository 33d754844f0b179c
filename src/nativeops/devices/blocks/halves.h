// SPDX-License-Identifier: Apache-2.0
// Large products of floats as three products of bf16, which a GPU multiplies some ten times faster:
// "high" of a recurrent layer.
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/blocks/together.h"
#include "nativeops/devices/recurrent_grad.h"

namespace nativeops::tuned {

inline void split(Device& dev, In<float, 2> m, Out<bf16, 2> high, Out<bf16, 2> low) {
  for_each(dev, m, [=] KERNEL(int64_t i, int64_t j) {
    put_parts<2>(&high(i, j), low.data - high.data, m(i, j));
  });
}

// The nearest bf16 of each number of a matrix, and the one nearest to what that leaves.
class Halves {
 public:
  Halves(Device& dev, In<float, 2> m)
      : across_(m.stride(0) < m.stride(1)), memory_(dev.workspace<bf16>(2 * m.count())) {
    if (across_) m = transpose(m);  // in the order in which the numbers lie
    high_ = dense(memory_.data(), m.size(0), m.size(1));
    low_ = dense(memory_.data() + m.count(), m.size(0), m.size(1));
    split(dev, m, high_, low_);
  }
  In<bf16, 2> high() const { return across_ ? transpose(high_) : high_; }
  In<bf16, 2> low() const { return across_ ? transpose(low_) : low_; }

 private:
  const bool across_;
  const Workspace<bf16> memory_;
  Out<bf16, 2> high_{}, low_{};
};

// As recurrence::Gemm: the smallest products first, without low·low.
struct GemmOfHalves {
  void operator()(Device& dev, In<float, 2> a, In<float, 2> b, Out<float, 2> c,
                  double beta = 0) const {
    const Halves left(dev, a), right(dev, b);
    gemm(dev, left.low(), right.high(), c, 1, beta);
    gemm(dev, left.high(), right.low(), c, 1, 1);
    gemm(dev, left.high(), right.high(), c, 1, 1);
  }
};

// f(how a layer multiplies large matrices)
template <class T, class F>
void with_gemm(const Layer<T>& layer, F f) {
  if constexpr (std::is_same_v<T, float>) {
    if (layer.high) return f(GemmOfHalves());
  }
  f(recurrence::Gemm());
}

}  // namespace nativeops::tuned
