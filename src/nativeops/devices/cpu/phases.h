// SPDX-License-Identifier: Apache-2.0
// Work in phases: a phase begins when all of the one before is done, as the steps of a recurrence
// do. No number of threads has to be there: whoever comes takes part, and one alone does it all.
#pragma once
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <type_traits>
#include <vector>

#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/cpu/pack.h"
#include "nativeops/devices/cpu/work.h"

namespace nativeops::tuned {

// The items of every phase are split into as many parts as there are threads. A thread takes those
// of its own part first, in every phase the same, so that its caches know them; when they are gone
// it waits a moment and then takes items of a thread that is late. Where they read more than a
// cache holds, what was read last is there still: every `turn` phases the order is reversed.
class Phases {
 public:
  Phases(int64_t phases, int64_t items, int parts, int64_t turn = 1)
      : phases_(phases), items_(items), turn_(turn), parts_(parts) {
    for (int p = 0; p < parts; ++p) parts_[p].size = first(p + 1) - first(p);
  }

  // body(phase, item, next), by the thread whose own part is `home`; `next` is the item that it
  // will probably do next, -1 if this is its last.
  template <class F>
  void work(int home, F&& body) {
    if (items_ == 0) return;
    there_.fetch_add(1, std::memory_order_relaxed);
    for (;;) {
      const int64_t phase = done_.load(std::memory_order_acquire) / items_;
      if (phase >= phases_) return;
      take(home, phase, body);
      const bool alone = there_.load(std::memory_order_relaxed) == 1;
      if (!is_done(phase, alone ? 0 : kPatience)) help(home, phase, body);
    }
  }

  // To be called once all have left `work`.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct alignas(64) Part {
    std::atomic<int64_t> taken{0};  // of all phases together
    int64_t size = 0;
  };
  static constexpr int kPatience = 200;  // times a processor pauses, about 40 ns each
  static constexpr int kSpins = 2000;    // before a thread gives way to another process

  int64_t first(int part) const { return part * items_ / static_cast<int64_t>(parts_.size()); }
  bool is_done(int64_t phase) const {
    return done_.load(std::memory_order_acquire) >= (phase + 1) * items_;
  }
  bool is_done(int64_t phase, int patience) const {
    for (int i = 0; i < patience; ++i) {
      if (is_done(phase)) return true;
      __builtin_ia32_pause();
    }
    return is_done(phase);
  }

  // An item, and the one after it; -1 for none.
  struct Claim {
    int64_t item, next;
  };
  // The next item of a part in this phase.
  Claim claim(int part, int64_t phase) {
    Part& p = parts_[part];
    int64_t taken = p.taken.load(std::memory_order_relaxed);
    while (taken < (phase + 1) * p.size) {
      if (p.taken.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed)) {
        const int64_t place = taken - phase * p.size;
        const bool forth = phase / turn_ % 2 == 0;
        const int64_t item = first(part) + (forth ? place : p.size - 1 - place);
        return {item, place + 1 == p.size ? -1 : item + (forth ? 1 : -1)};
      }
    }
    return {-1, -1};
  }

  // After a failure the other items count as done all the same: nobody may wait for them for ever.
  template <class F>
  void run(int64_t phase, const Claim& claimed, F& body) {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      body(phase, claimed.item, claimed.next);
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  template <class F>
  void take(int part, int64_t phase, F& body) {
    int64_t count = 0;
    for (Claim c; (c = claim(part, phase)).item >= 0; ++count) run(phase, c, body);
    if (count > 0) done_.fetch_add(count, std::memory_order_acq_rel);
  }

  template <class F>
  void help(int home, int64_t phase, F& body) {
    const int n = static_cast<int>(parts_.size());
    for (int i = 1; i < n && !is_done(phase); ++i) take((home + i) % n, phase, body);
    while (!is_done(phase, kSpins)) sched_yield();
  }

  const int64_t phases_, items_, turn_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  std::vector<Part> parts_;
  alignas(64) std::atomic<int64_t> done_{0};  // items of all phases together
  std::atomic<int> there_{0};
};

// Where others take the CPUs, a phase waits for who was stopped in it. A short one could be done
// long since: two threads then take the time of one for many (Zen4 EPYC, 2026-11).
constexpr int64_t kWorthWaiting = 400000;

// Runs phases of work on all threads, or on this one alone if `steps`, the vector operations in
// all, are few, or few for each phase. Each thread has a `Thread` for as long as it takes part.
// turn, next: see Phases. body(home, phase, item, next), or without `next`.
struct Nothing {};
template <class Thread = Nothing, class F>
void run_phases(Device& dev, int64_t phases, int64_t items, int64_t steps, F&& body,
                int64_t turn = 1) {
  const int64_t each = steps / std::max<int64_t>(1, phases);
  const bool many = each > kWorthMeeting && worth_sharing(dev, steps) &&
                    (each > kWorthWaiting || phases == 1 || !dev.crowded());
  const int64_t wanted = many ? dev.num_threads() : 1;
  const int threads = static_cast<int>(std::max<int64_t>(1, std::min(wanted, items)));
  Phases all(phases, items, threads, turn);
  dev.spread(threads, [&](int64_t home) {
    [[maybe_unused]] const Thread thread{};
    all.work(static_cast<int>(home), [&](int64_t phase, int64_t item, int64_t next) {
      if constexpr (std::is_invocable_v<F&, int64_t, int64_t, int64_t, int64_t>) {
        body(home, phase, item, next);
      } else {
        body(home, phase, item);
      }
    });
  });
  all.rethrow();
}

}  // namespace nativeops::tuned
