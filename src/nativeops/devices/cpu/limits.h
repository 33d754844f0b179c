// SPDX-License-Identifier: Apache-2.0
// How fast this machine can be at best: loops without memory, to measure kernels by.
#pragma once
#include <algorithm>
#include <chrono>

#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/cpu/simd.h"

namespace nativeops::tuned {

// The operations of one vector of products and of the pairwise kernels, on sums `a` and `b`. On
// CPUs that multiply and add in different units it matters which of the two adds up, so there are
// several mixes.
enum class Mix {
  kMultiplyAdd,
  kSmallerAdd,
  kSmallerFma,
  kDistanceAdd,
  kDistanceFma,
  kGradientFma,
  kGradientMixed
};

template <Mix kMix, int kIndex>
[[gnu::always_inline]] inline void one_vector(simd::Vec<float> x, simd::Vec<float> g,
                                              simd::Vec<float>& a, simd::Vec<float>& b) {
  simd::keep(x);  // a new number each time, as far as the compiler knows
  if constexpr (kMix == Mix::kMultiplyAdd) {
    a = simd::fma(x, g, a);
    simd::keep(a);
    return;
  }
  if constexpr (kMix == Mix::kSmallerAdd || kMix == Mix::kSmallerFma) {
    const simd::Vec<float> least{x.raw < g.raw ? x.raw : g.raw};
    a = kMix == Mix::kSmallerAdd ? a + least : simd::fma(least, g, a);
    simd::keep(a);
    return;
  }
  const auto d = x - g;
  if constexpr (kMix == Mix::kDistanceAdd) {
    a = a + simd::abs(d);
  } else if constexpr (kMix == Mix::kDistanceFma) {
    a = simd::fma(simd::abs(d), g, a);
  } else if constexpr (kMix == Mix::kGradientFma || kIndex % 3 == 0) {
    const auto s = simd::sign(d);
    a = simd::fma(g, s, a);
    b = simd::fnma(g, s, b);
  } else {
    auto t = g * simd::sign(d);
    simd::keep(t);  // else the compiler contracts the three to two fma
    a = a + t;
    b = b - t;
  }
  simd::keep(a);
  if constexpr (kMix == Mix::kGradientFma || kMix == Mix::kGradientMixed) simd::keep(b);
}

template <Mix kMix>
double vectors_per_second(Device& dev) {
  // Independent chains, to hide the latency, as many as there are registers for.
  constexpr bool kGradient = kMix == Mix::kGradientFma || kMix == Mix::kGradientMixed;
  constexpr int kChains = NATIVEOPS_LEVEL >= 2 || !kGradient ? 9 : 4;
  constexpr int64_t kRounds = 20000;
  const int64_t tasks = int64_t{32} * dev.num_threads();
  const auto start = std::chrono::steady_clock::now();
  dev.spread(tasks, [&](int64_t) {
    auto x = simd::zero<float>(), g = simd::broadcast(1.f);
    simd::keep(g);
    simd::Vec<float> a[kChains], b[kChains];
    simd::unroll<kChains>([&](auto i) __attribute__((always_inline)) { a[i] = b[i] = x; });
    for (int64_t round = 0; round < kRounds; ++round) {
      simd::unroll<kChains>(
          [&](auto i) __attribute__((always_inline)) { one_vector<kMix, i>(x, g, a[i], b[i]); });
    }
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<double>(tasks * kRounds * kChains) / elapsed.count();
}

// Vector operations per second of all threads, by the best mix known: 1 operation a vector
// (multiply and add), 2 (the distance by way of the smaller number: choose it, add), 3 (the same by
// its formula: subtract, clear the sign, add) or 4 (its gradient: subtract, sign, add twice).
inline double vector_operations_per_second(Device& dev, int operations) {
  if (operations == 1) return vectors_per_second<Mix::kMultiplyAdd>(dev);
  if (operations == 2) {
    return 2 * std::max(vectors_per_second<Mix::kSmallerAdd>(dev),
                        vectors_per_second<Mix::kSmallerFma>(dev));
  }
  if (operations == 3) {
    return 3 * std::max(vectors_per_second<Mix::kDistanceAdd>(dev),
                        vectors_per_second<Mix::kDistanceFma>(dev));
  }
  return 4 * std::max(vectors_per_second<Mix::kGradientFma>(dev),
                      vectors_per_second<Mix::kGradientMixed>(dev));
}

}  // namespace nativeops::tuned
