// SPDX-License-Identifier: Apache-2.0
// What a team reduces rows of any length to, against plain loops.
#include <limits>
#include <type_traits>
#include <vector>

#include "harness.h"

using harness::Array;
using harness::on_each_device;

namespace nativeops {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// x[first] .. x[last - 1], and the same with a NaN in place of the last one.
template <class V>
void expect_reductions(Device& dev, View<const V, 1> x, int64_t first, int64_t last) {
  V found[3] = {};
  bool nan = false, twice = false;
  int64_t large = 0;
  for_each_item(dev, 1, [=, &found, &nan, &large, &twice] KERNEL(Team team, int64_t) {
    const V sum = team.sum(first, last, [=](int64_t i) { return x(i); });
    const V most = team.max(first, last, [=](int64_t i) { return x(i); });
    const V least = team.min(first, last, [=](int64_t i) { return x(i); });
    const TwoSums<V> both = team.two_sums(
        first, last, [=](int64_t i) { return TwoSums<V>{x(i), static_cast<V>(2 * x(i))}; });
    const int64_t count = team.sum(first, last, [=](int64_t i) { return x(i) > V(1); });
    bool is_nan = false;
    if constexpr (std::is_floating_point_v<V>) {
      const V with_nan =
          team.max(first, last, [=](int64_t i) { return i == last - 1 ? V(kNan) : x(i); });
      is_nan = with_nan != with_nan;
    }
    team.each(0, 1, [&](int64_t) {
      twice = both.first == sum && both.second == 2 * sum;
      found[0] = sum, found[1] = most, found[2] = least, large = count, nan = is_nan;
    });
  });
  V sum = 0, most = lowest<V>(), least = highest<V>();
  int64_t count = 0;
  for (int64_t i = first; i < last; ++i) {
    sum += x(i), most = max2(most, x(i)), least = min2(least, x(i)), count += x(i) > V(1);
  }
  EXPECT(twice);
  EXPECT(found[0] == sum && found[1] == most && found[2] == least && large == count);
  EXPECT(nan == (std::is_floating_point_v<V> && last > first));
}

CASE(rows_of_any_length_are_reduced) {
  Array<float> x(1, 1, 600);
  Array<double> wide(1, 1, 600);
  std::vector<int32_t> few(600);
  std::vector<int64_t> many(600);
  for (int64_t i = 0; i < 600; ++i) many[i] = few[i] = static_cast<int32_t>(i * 37 % 101 - 50);
  on_each_device([&](Device& dev) {
#if defined(NATIVEOPS_CPU_THREADS)  // where a block costs milliseconds
    const std::vector<int64_t> lengths = {0, 1, 15, 65, 300};
#else
    std::vector<int64_t> lengths = {255, 256, 257, 597};
    for (int64_t n = 0; n < 140; ++n) lengths.push_back(n);
#endif
    for (int64_t n : lengths) {
      expect_reductions(dev, at(at(x.in(), 0), 0), 3, 3 + n);
      expect_reductions(dev, at(at(wide.in(), 0), 0), 0, n);
      expect_reductions(dev, View<const int32_t, 1>{few.data(), {600}, {1}}, 1, 1 + n);
      expect_reductions(dev, View<const int64_t, 1>{many.data(), {600}, {1}}, 0, n);
    }
  });
}

CASE(reductions_of_nothing_and_of_nan) {
  on_each_device([](Device& dev) {
    float found[7] = {};
    View<float, 1> f = dense(found, 7);
    for_each_item(dev, 1, [=] KERNEL(Team team, int64_t) {
      const float empty = team.max(4, 4, [](int64_t) { return 1.0f; });
      const float least = team.min(4, 4, [](int64_t) { return 1.0f; });
      const float nan = team.max(0, 90, [](int64_t i) { return i == 71 ? kNan : float(i); });
      const float nan_too = team.min(0, 90, [](int64_t i) { return i == 0 ? kNan : float(i); });
      const int64_t big = team.sum(0, 100, [](int64_t) { return int64_t{1} << 40; });
      const int64_t marks = team.sum(0, 300, [](int64_t i) { return uint8_t(i != 7); });
      const bool none = team.any(0, 0, [](int64_t) { return true; });
      team.each(0, 1, [&](int64_t) {
        f(0) = empty;
        f(1) = least;
        f(2) = nan;
        f(3) = nan_too;
        f(4) = static_cast<float>(big >> 40);
        f(5) = none ? 1.0f : 0.0f;
        f(6) = static_cast<float>(marks);
      });
    });
    EXPECT(found[0] == -kInfinity && found[1] == kInfinity);
    EXPECT(found[2] != found[2] && found[3] != found[3]);
    EXPECT(found[4] == 100 && found[5] == 0 && found[6] == 299);
  });
}

}  // namespace nativeops

int main(int argc, char** argv) { return harness::run(argc, argv); }
