// SPDX-License-Identifier: Apache-2.0
// Barriers that find their own misuse. Each generation has one pair of atomics, so ThreadSanitizer
// sees exactly the order that a CUDA barrier gives: what a thread did before its arrival happens
// before what any thread does after the release, and nothing more. (A mutex would order threads
// that merely pass the same barrier one after the other, and so hide races.) All other atomics here
// are relaxed, which orders nothing.
#pragma once
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace nativeops {
namespace debug {

constexpr int kMaxThreads = 1024;

// Ends the threads of a block that is known to be wrong.
struct Abandoned {};

// The two atomics of every second generation: they are free again once all threads have arrived at
// the generation between, so counting on replaces clearing.
struct Generation {
  std::atomic<int64_t> arrived{0}, released{0};
};

enum class State { kRunning, kWaiting, kLeft };

struct ThreadState {
  std::atomic<State> state{State::kRunning};
  std::atomic<const Generation*> waits_for{nullptr};
  std::atomic<int64_t> round{0};
  std::atomic<const char*> file{""};
  std::atomic<int> line{0};
};

// The threads of the one block that runs, and what was found wrong with it.
class BlockState {
 public:
  ThreadState threads[kMaxThreads];
  int n_threads = 0;
  int64_t block = 0;
  std::atomic<int64_t> events{0};  // arrivals and ends of threads
  std::atomic<bool> failed{false};

  void begin(int64_t block_index, int n) {
    block = block_index;
    n_threads = n;
    for (int i = 0; i < n; ++i) threads[i].state.store(State::kRunning, std::memory_order_relaxed);
  }
  void leave(int thread) {
    events.fetch_add(1, std::memory_order_relaxed);
    threads[thread].state.store(State::kLeft, std::memory_order_relaxed);
  }
  void fail(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (message_.empty()) message_ = text;
    failed.store(true, std::memory_order_relaxed);
  }
  // After all threads have ended.
  std::string take_message() {
    failed.store(false, std::memory_order_relaxed);
    std::string text;
    text.swap(message_);
    return text;
  }

  std::string describe(int thread) const {
    const ThreadState& t = threads[thread];
    const std::string name = "thread " + std::to_string(thread);
    if (t.state.load(std::memory_order_relaxed) == State::kLeft) return name + " has returned";
    return name + " waits at " + t.file.load(std::memory_order_relaxed) + ":" +
           std::to_string(t.line.load(std::memory_order_relaxed));
  }

  // True if every thread has ended or waits for a release that no thread is left to give.
  bool stuck() const {
    const int64_t before = events.load(std::memory_order_relaxed);
    if (!all_stand()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return all_stand() && events.load(std::memory_order_relaxed) == before;
  }

 private:
  bool all_stand() const {
    for (int i = 0; i < n_threads; ++i) {
      const ThreadState& t = threads[i];
      const State state = t.state.load(std::memory_order_relaxed);
      if (state == State::kRunning) return false;
      if (state == State::kLeft) continue;
      const Generation* g = t.waits_for.load(std::memory_order_relaxed);
      if (g->released.load(std::memory_order_relaxed) >= t.round.load(std::memory_order_relaxed)) {
        return false;
      }
    }
    return true;
  }

  std::mutex mutex_;
  std::string message_;
};

// A barrier of the threads [first, first + n) of a block.
class Barrier {
 public:
  void begin(int first, int n) {
    first_ = first;
    n_ = n;
    for (Generation& g : generations_) {
      g.arrived.store(0, std::memory_order_relaxed);
      g.released.store(0, std::memory_order_relaxed);
    }
  }

  // `passed`: how often this thread has passed this barrier.
  void wait(BlockState& block, int thread, int64_t& passed, const char* file, int line) {
    if (block.failed.load(std::memory_order_relaxed)) throw Abandoned();
    Generation& generation = generations_[passed % 2];
    const int64_t round = passed / 2 + 1;
    ++passed;
    ThreadState& me = block.threads[thread];
    me.file.store(file, std::memory_order_relaxed);
    me.line.store(line, std::memory_order_relaxed);
    block.events.fetch_add(1, std::memory_order_relaxed);
    if (generation.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == round * n_) {
      check_same_place(block, thread);
      generation.released.store(round, std::memory_order_release);
      return;
    }
    me.waits_for.store(&generation, std::memory_order_relaxed);
    me.round.store(round, std::memory_order_relaxed);
    me.state.store(State::kWaiting, std::memory_order_relaxed);
    await(block, thread, generation, round);
    me.state.store(State::kRunning, std::memory_order_relaxed);
  }

 private:
  void check_same_place(BlockState& block, int thread) {
    const ThreadState& me = block.threads[thread];
    for (int i = first_; i < first_ + n_; ++i) {
      const ThreadState& other = block.threads[i];
      if (other.line.load(std::memory_order_relaxed) == me.line.load(std::memory_order_relaxed) &&
          std::string(other.file.load(std::memory_order_relaxed)) ==
              me.file.load(std::memory_order_relaxed)) {
        continue;
      }
      block.fail("divergent barrier in block " + std::to_string(block.block) + ": " +
                 block.describe(thread) + ", but " + block.describe(i));
      throw Abandoned();
    }
  }

  void await(BlockState& block, int thread, const Generation& generation, int64_t round) {
    for (int spins = 1; generation.released.load(std::memory_order_relaxed) < round; ++spins) {
      if (block.failed.load(std::memory_order_relaxed)) throw Abandoned();
      if (spins % 64 == 0 && block.stuck()) fail_not_reached(block, thread);
      sched_yield();
    }
    generation.released.load(std::memory_order_acquire);
  }

  void fail_not_reached(BlockState& block, int thread) {
    const ThreadState& me = block.threads[thread];
    int other = first_;
    for (int i = first_; i < first_ + n_; ++i) {
      const ThreadState& t = block.threads[i];
      const bool here = t.state.load(std::memory_order_relaxed) == State::kWaiting &&
                        t.waits_for.load(std::memory_order_relaxed) ==
                            me.waits_for.load(std::memory_order_relaxed);
      if (!here) other = i;
    }
    block.fail("barrier not reached by all threads of block " + std::to_string(block.block) + ": " +
               block.describe(thread) + ", but " + block.describe(other));
    throw Abandoned();
  }

  int first_ = 0, n_ = 0;
  Generation generations_[2];
};

}  // namespace debug
}  // namespace nativeops
