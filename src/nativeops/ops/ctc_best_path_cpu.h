// SPDX-License-Identifier: Apache-2.0
// CTC's best path on the CPU: the classes of a frame in vectors. Declared in ctc_best_path.py.
#pragma once
#include "nativeops/devices/cpu/softmax.h"
#include "nativeops/ops/ctc_best_path.h"

namespace nativeops::tuned {

// As nativeops::TeamFrames, where the classes of a frame lie side by side.
struct VectorFrames {
  template <class T>
  static BestClass<Accum<T>> best(Team team, const In<T, 1>& row) {
    const int64_t n = row.size(0);
    if (row.stride(0) == 1 || n == 1) {
      const auto of = simd::softmax_sums(row.data, n);
      if (of.sum > 0) return {of, first_at_least(row.data, n, of.largest)};
    }
    return TeamFrames::best<T>(team, row);  // also of NaN, and of nothing but -infinity
  }

 private:
  // The place of the first number that is no smaller than one of them; zeros may be read behind.
  template <class T>
  static int64_t first_at_least(const T* row, int64_t n, Accum<T> least) {
    using A = Accum<T>;
    const auto wanted = simd::broadcast(least);
    for (int64_t k = 0;; k += simd::kLanes<A>) {
      const uint32_t found = simd::at_least(simd::load(row + k, n - k), wanted);
      if (found != 0) return k + __builtin_ctz(found);
    }
  }
};

template <class T>
constexpr auto ctc_best_path = nativeops::ctc_best_path<T, VectorFrames>;

}  // namespace nativeops::tuned
