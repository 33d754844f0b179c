// SPDX-License-Identifier: Apache-2.0
// When threads count as crowded by other processes (devices/cpu/crowding.h), and what work then
// goes to one thread.
#include "nativeops/devices/cpu/crowding.h"

#include <stdexcept>
#include <thread>
#include <vector>

#include "harness.h"
#include "nativeops/devices/cpu/phases.h"
#include "nativeops/devices/cpu/recurrent_frames.h"

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
// How many of eight tasks the threads are asked to do, if each takes so many milliseconds.
int64_t tasks_left(bool crowded, int ms) {
  int64_t done = 0;
  const int64_t asked = asked_by(crowded, [&](Device& dev) {
    dev.parallel(8, [&](int64_t i) {
      EXPECT(i == done++);
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    });
  });
  EXPECT(done == 8);
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

CASE(short_tasks_are_done_alone_where_threads_are_crowded) {
  EXPECT(tasks_left(false, 0) == 8);
  EXPECT(tasks_left(true, 0) == 1);  // nobody was asked
  EXPECT(tasks_left(true, 4) == 7);  // the first took as long as a stall
}

CASE(an_exception_of_a_task_that_is_done_alone_comes_out) {
  int64_t done = 0;
  const auto work = [&](Device& dev) {
    dev.parallel(8, [&](int64_t i) {
      ++done;
      if (i == 3) throw std::runtime_error("the fourth");
    });
  };
  bool came = false;
  try {
    asked_by(true, work);
  } catch (const std::runtime_error&) {
    came = true;
  }
  EXPECT(came);
  EXPECT(done == 8);
}

CASE(weights_of_a_small_layer_wake_nobody) {
  EXPECT(panels_asked_for(64, 256) == 1);
  EXPECT(panels_asked_for(1024, 1024) > 1);
}

}  // namespace nativeops::tuned

int main(int argc, char** argv) { return harness::run(argc, argv); }
