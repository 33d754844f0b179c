// SPDX-License-Identifier: Apache-2.0
// Exercises the thread pool; run under ThreadSanitizer by test_pool.py.
#include "nativeops/devices/cpu/pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "expect.h"

using nativeops::cpu::num_threads;
using nativeops::cpu::parallel;
using nativeops::cpu::set_num_threads;

namespace {

// Every task writes its own, unprotected place: a task run twice or never, or a result read too
// early, is a wrong sum and a race.
int64_t sum_of_tasks(int64_t n) {
  std::vector<int64_t> places(n, 0);
  parallel(
      n, [](void* context, int64_t i) { (*static_cast<std::vector<int64_t>*>(context))[i] += i + 1; },
      &places);
  int64_t sum = 0;
  for (const int64_t place : places) sum += place;
  return sum;
}

void expect_right(int64_t n) { expect(sum_of_tasks(n) == n * (n + 1) / 2, "each task runs once"); }

void many_callers_at_once() {
  std::vector<std::thread> callers;
  for (int t = 0; t < 8; ++t)
    callers.emplace_back([] {
      for (int round = 0; round < 200; ++round) expect_right(1 + round % 37);
    });
  for (auto& caller : callers) caller.join();
}

void nested_calls() {
  parallel(
      16, [](void*, int64_t) { expect_right(100); }, nullptr);
}

void a_changing_number_of_threads() {
  for (int n : {1, 4, 2, 3, 8}) {
    set_num_threads(n);
    expect(num_threads() == n, "the number of threads is as set");
    for (int round = 0; round < 50; ++round) expect_right(64);
  }
}

void sleeping_workers_wake() {
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    expect_right(64);
  }
}

void a_forked_child_has_a_pool_of_its_own() {
  expect_right(64);
  const pid_t child = fork();
  if (child == 0) {
    expect_right(64);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child computes");
  expect_right(64);
}

}  // namespace

int main(int argc, char**) {
  set_num_threads(4);
  for (int64_t n : {0, 1, 2, 3, 1000, 100000}) expect_right(n);
  many_callers_at_once();
  nested_calls();
  sleeping_workers_wake();
  a_changing_number_of_threads();
  if (argc > 1) a_forked_child_has_a_pool_of_its_own();  // ThreadSanitizer does not follow forks
  std::puts("all is true");
}
