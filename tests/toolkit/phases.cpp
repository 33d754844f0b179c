// SPDX-License-Identifier: Apache-2.0
// Work in phases (devices/cpu/phases.h) by threads that come early, late, or never. What a phase
// reads of the one before is written without atomics, so that ThreadSanitizer hears of a phase that
// begins too early.
#include "nativeops/devices/cpu/phases.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "harness.h"

namespace nativeops::tuned {

// work(home) in so many threads, which begin when all are there.
template <class F>
void on_threads(int n, F work) {
  std::vector<std::thread> threads;
  std::atomic<int> there{0};
  for (int home = 0; home < n; ++home) {
    threads.emplace_back([&, home] {
      for (++there; there < n;) std::this_thread::yield();
      work(home);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
void wait_us(int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

// Each item of a phase adds up all items of the phase before: wrong if one was not there yet, and
// counts how often it was done.
struct Sums {
  const int64_t phases, items;
  std::vector<int64_t> value;
  std::vector<int> times;

  Sums(int64_t phases, int64_t items)
      : phases(phases), items(items), value(phases * items), times(phases * items) {}

  void operator()(int64_t phase, int64_t item, int64_t) {
    int64_t sum = 1;
    for (int64_t i = 0; phase > 0 && i < items; ++i) sum += value[(phase - 1) * items + i] % 1009;
    value[phase * items + item] = sum;
    ++times[phase * items + item];
  }
  bool right() const {
    int64_t want = 1;
    for (int64_t phase = 0; phase < phases; ++phase) {
      for (int64_t i = phase * items; i < (phase + 1) * items; ++i) {
        if (times[i] != 1 || value[i] != want) return false;
      }
      want = 1 + items * (want % 1009);
    }
    return true;
  }
};

CASE(every_item_of_every_phase_is_done_once_and_in_order) {
  for (int parts : {1, 2, 3, 5}) {
    for (int64_t items : {1, 2, 5, 17}) {
      for (int64_t count : {0, 1, 2, 60}) {
        Sums sums(count, items);
        Phases phases(count, items, parts);
        on_threads(parts, [&](int home) { phases.work(home, sums); });
        phases.rethrow();
        EXPECT(sums.right());
      }
    }
  }
}

CASE(no_items_are_no_work) {
  Phases phases(7, 0, 3);
  on_threads(3, [&](int home) { phases.work(home, [](auto...) { EXPECT(false); }); });
}

CASE(one_thread_alone_does_all) {
  for (int home : {0, 2, 4}) {
    Sums sums(40, 13);
    Phases phases(40, 13, 5);
    phases.work(home, sums);
    EXPECT(sums.right());
  }
}

CASE(the_order_of_items_is_reversed_in_turn) {
  for (int64_t turn : {1, 2}) {
    std::vector<int64_t> order, told;
    Phases phases(4, 3, 1, turn);
    phases.work(0, [&](int64_t, int64_t item, int64_t next) {
      order.push_back(item);
      told.push_back(next);
    });
    const std::vector<int64_t> forth{0, 1, 2}, back{2, 1, 0};
    for (int64_t phase = 0; phase < 4; ++phase) {
      const auto begin = order.begin() + 3 * phase;
      EXPECT(std::vector<int64_t>(begin, begin + 3) == (phase / turn % 2 == 0 ? forth : back));
      for (int64_t i = 3 * phase; i < 3 * phase + 3; ++i) {  // none is told of another phase
        EXPECT(told[i] == (i % 3 == 2 ? -1 : order[i + 1]));
      }
    }
  }
}

CASE(late_threads_take_part_or_find_nothing) {
  for (int run = 0; run < 20; ++run) {
    Sums sums(200, 9);
    Phases phases(200, 9, 4);
    on_threads(4, [&](int home) {
      wait_us(150 * home * (run % 5));
      phases.work(home, sums);
    });
    EXPECT(sums.right());
    phases.work(3, sums);  // all is done
    EXPECT(sums.right());
  }
}

// One thread sleeps in each of its items: the other must not wait for its whole part.
CASE(items_of_a_slow_thread_are_taken_over) {
  Sums sums(3, 8);
  std::atomic<int> by_slow{0};
  Phases phases(3, 8, 2);
  on_threads(2, [&](int home) {
    phases.work(home, [&](int64_t phase, int64_t item, int64_t next) {
      if (home == 1) wait_us(20000);
      by_slow += home == 1;
      sums(phase, item, next);
    });
  });
  EXPECT(sums.right());
  EXPECT(by_slow < 12);  // which would be all of its own
}

CASE(a_failure_ends_the_work_and_nobody_waits) {
  for (int parts : {1, 3}) {
    Phases phases(50, 6, parts);
    std::atomic<int> after{0};
    on_threads(parts, [&](int home) {
      phases.work(home, [&](int64_t phase, int64_t item, int64_t) {
        if (phase == 7 && item == 4) throw std::runtime_error("no memory");
        if (phase > 7) ++after;
      });
    });
    EXPECT(after == 0);
    std::string said;
    try {
      phases.rethrow();
    } catch (const std::runtime_error& error) {
      said = error.what();
    }
    EXPECT(said == "no memory");
  }
}

// For the test of the test: items of one phase that share a number, which ThreadSanitizer reports.
static void race_within_a_phase() {
  int64_t sum = 0;
  Phases phases(100, 2, 2);
  on_threads(2, [&](int home) {
    phases.work(home, [&](int64_t, int64_t item, int64_t) {
      wait_us(200);  // long enough for the other thread to take the other item
      sum += item;
    });
  });
}

}  // namespace nativeops::tuned

int main(int argc, char** argv) {
  if (!harness::can_run()) return harness::kNotThisCpu;
  if (argc > 1 && std::string(argv[1]) == "race_within_a_phase") {
    nativeops::tuned::race_within_a_phase();
    return 0;
  }
  return harness::run(argc, argv);
}
