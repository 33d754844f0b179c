// SPDX-License-Identifier: Apache-2.0
// When threads count as crowded by other processes (devices/cpu/crowding.h), and what work then
// goes to one thread.
#include "nativeops/devices/cpu/crowding.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "harness.h"
#include "nativeops/devices/cpu/phases.h"
#include "nativeops/devices/cpu/recurrent_frames.h"
#include "nativeops/devices/kernel.h"

using nativeops::cpu::Crowding;

constexpr int64_t kMs = 1000000;

CASE(threads_are_not_crowded_at_first) {
  EXPECT(!Crowding().at(0));
  EXPECT(!Crowding().at(1));
}

CASE(time_that_a_thread_ran_is_no_loss) {
  Crowding crowding;
  crowding.took_part(5 * kMs, 105 * kMs, 100 * kMs);
  EXPECT(!crowding.at(105 * kMs));
  crowding.took_part(200 * kMs, 300 * kMs, 99 * kMs + 1);
  EXPECT(!crowding.at(300 * kMs));
}

CASE(a_loss_counts_for_some_time) {
  Crowding crowding;
  crowding.took_part(5 * kMs, 9 * kMs, 3 * kMs);
  EXPECT(crowding.at(9 * kMs));
  EXPECT(crowding.at(9 * kMs + Crowding::kFirst - 1));
  EXPECT(!crowding.at(9 * kMs + Crowding::kFirst));
}

CASE(losses_of_one_job_count_once) {
  Crowding crowding;
  crowding.took_part(0, 4 * kMs, kMs);
  crowding.took_part(0, 5 * kMs, kMs);
  EXPECT(crowding.at(4 * kMs + Crowding::kFirst - 1));
  EXPECT(!crowding.at(4 * kMs + Crowding::kFirst));
}

CASE(losses_that_follow_soon_count_for_longer_and_longer) {
  Crowding crowding;
  int64_t now = 1000 * kMs, want = Crowding::kFirst;
  for (int i = 0; i < 12; ++i) {
    crowding.took_part(now - 3 * kMs, now, kMs);
    EXPECT(crowding.at(now + want - 1));
    EXPECT(!crowding.at(now + want));
    now += want + 3 * kMs;
    want = std::min(2 * want, Crowding::kLongest);
  }
  EXPECT(want == Crowding::kLongest);
  now += Crowding::kSoon;
  crowding.took_part(now - 3 * kMs, now, kMs);
  EXPECT(!crowding.at(now + Crowding::kFirst));
}

CASE(a_part_tells_of_time_that_its_thread_did_not_run) {
  Crowding crowding;
  const int64_t begin = nativeops::cpu::time_of(CLOCK_MONOTONIC);
  {
    const nativeops::cpu::Part part(crowding, begin);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT(crowding.at(begin + 2 * kMs));
}

CASE(a_part_that_comes_late_tells_of_that) {
  Crowding crowding;
  const int64_t begin = nativeops::cpu::time_of(CLOCK_MONOTONIC);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  {
    const nativeops::cpu::Part part(crowding, begin);
  }
  EXPECT(crowding.at(begin + 2 * kMs));
}

namespace nativeops::tuned {

// How many tasks the threads are asked to do by work(dev); 1 where nobody is asked.
template <class F>
int64_t asked_by(bool crowded, F&& work) {
  static int64_t asked;
  NativeopsServices own{sizeof(NativeopsServices),
                        [](int64_t n, void (*body)(void*, int64_t), void* context) {
                          asked = n;
                          harness::serial(n, body, context);
                        },
                        [] { return 4; },
                        harness::allocate,
                        harness::release,
                        harness::never,
                        harness::multiply};
  if (crowded) own.crowded = [] { return 1; };
  Device dev{&own};
  asked = 1;
  work(dev);
  return asked;
}
int64_t threads_for(bool crowded, int64_t phases, int64_t steps) {
  int64_t done = 0;
  const int64_t asked = asked_by(crowded, [&](Device& dev) {
    run_phases(dev, phases, 8, steps, [&](int64_t, int64_t, int64_t) { ++done; });
  });
  EXPECT(done == phases * 8);
  return asked;
}
int64_t parts_of_loop(bool crowded, int64_t count, int64_t cost) {
  std::vector<float> numbers(count);
  const View<float, 1> all{numbers.data(), {count}, {1}};
  const int64_t asked = asked_by(
      crowded, [&](Device& dev) { for_each(dev, all, [=](int64_t i) { all(i) += 1; }, cost); });
  EXPECT(std::count(numbers.begin(), numbers.end(), 1.0f) == count);
  return asked;
}
int64_t panels_asked_for(int64_t rows, int64_t columns) {
  std::vector<float> weights(rows * columns);
  const In<float, 2> matrix{weights.data(), {rows, columns}, {columns, 1}};
  return asked_by(false, [&](Device& dev) {
    const ColumnPanels<float, Numbers> panels(dev, matrix, 1, 1000);
    EXPECT(panels.split.panels > 1);
  });
}
bool is_shared(bool crowded, int64_t steps) {
  NativeopsServices own = harness::kThreaded;
  if (crowded) own.crowded = [] { return 1; };
  return worth_sharing(Device{&own}, steps);
}

CASE(small_work_is_done_alone_where_threads_are_crowded) {
  EXPECT(is_shared(false, kWorthWaking + 1));
  EXPECT(!is_shared(false, kWorthWaking));
  EXPECT(!is_shared(true, kWorthStalling));
  EXPECT(is_shared(true, kWorthStalling + 1));
}

CASE(short_phases_are_done_alone_where_threads_are_crowded) {
  EXPECT(threads_for(false, 100, 100 * 32000) == 4);
  EXPECT(threads_for(true, 100, 100 * 32000) == 1);
  EXPECT(threads_for(true, 10000, 10000 * 32000) == 1);          // however many they are
  EXPECT(threads_for(true, 100, 100 * 2 * kWorthWaiting) == 4);  // long ones are shared
  EXPECT(threads_for(true, 1, 2 * kWorthStalling) == 4);
  EXPECT(threads_for(true, 1, kWorthStalling) == 1);
}

CASE(short_loops_are_done_alone_where_threads_are_crowded) {
  EXPECT(parts_of_loop(false, 8 * kGrain, 1) == 8);
  EXPECT(parts_of_loop(true, 8 * kGrain, 1) == 1);
  EXPECT(parts_of_loop(true, 8 * kGrain / 128, 128) == 1);
  EXPECT(parts_of_loop(true, kFewWhenCrowded, 1) == kFewWhenCrowded / kGrain);  // long ones are not
  EXPECT(parts_of_loop(true, kFewWhenCrowded / 128, 128) == kFewWhenCrowded / kGrain);
}

CASE(weights_of_a_small_layer_wake_nobody) {
  EXPECT(panels_asked_for(64, 256) == 1);
  EXPECT(panels_asked_for(1024, 1024) > 1);
}

}  // namespace nativeops::tuned

int main(int argc, char** argv) { return harness::run(argc, argv); }
