// SPDX-License-Identifier: Apache-2.0
#include "nativeops/devices/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "nativeops/devices/cpu/floating.h"

namespace nativeops::cpu {
namespace {

// How long a worker looks for the next job before it sleeps. Waking a sleeper costs about as much.
constexpr auto kPatience = std::chrono::microseconds(30);

constexpr int kFew = 15;  // workers that are kept off the CPU of their caller

thread_local bool inside = false;  // this thread is running tasks of the pool

// The CPUs of the process, which are its first thread's.
bool find_cpus(cpu_set_t& set) { return sched_getaffinity(getpid(), sizeof set, &set) == 0; }

class Pool {
 public:
  explicit Pool(int32_t threads) : wanted_(threads), on_(threads) {
    workers_.reserve(threads);
    for (auto& on : on_) on = kNowhere;
    if (!find_cpus(allowed_)) CPU_ZERO(&allowed_);
    try {
      for (int32_t i = 1; i < threads; ++i) {
        workers_.push_back({std::thread([this, i] { serve(i); }), allowed_});
        // Not those of a caller that is bound to one of them.
        pthread_setaffinity_np(workers_.back().thread.native_handle(), sizeof allowed_, &allowed_);
      }
    } catch (const std::system_error&) {
      // The system gives no more threads: those there are do the work.
    }
  }

  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.thread.join();
  }

  int32_t wanted() const { return wanted_; }

  void run(Job& job) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      generation_.fetch_add(1, std::memory_order_release);
    }
    const int cpu = sched_getcpu();
    const bool asleep = sleepers_.load() > 0;
    if (asleep || is_shared(cpu)) keep_off(cpu);
    if (asleep) wake_.notify_all();
    job.work(0);
    {
      // No worker may enter the job from here on; those inside finish their last task.
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = nullptr;
    }
    while (busy_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }

 private:
  // Whether a worker is where the caller is: the system has moved one of them, and leaves a worker
  // that spins waiting behind its caller for milliseconds.
  bool is_shared(int cpu) const {
    return std::any_of(on_.begin(), on_.end(),
                       [&](const auto& on) { return on.load(std::memory_order_relaxed) == cpu; });
  }

  // Workers sleep where the caller is not. In a virtual machine Linux takes a CPU that is idle for
  // one that the host has taken away, and would wake them on the CPU of the caller, where they wait
  // for milliseconds. If somebody else has said where they run, that holds. Of many workers one
  // that waits is not missed, and to place them all would take longer.
  void keep_off(int cpu) {
    const int workers = static_cast<int>(workers_.size());
    if (cpu == avoided_ || workers > kFew || workers >= CPU_COUNT(&allowed_)) return;
    avoided_ = cpu;
    cpu_set_t others = allowed_;
    CPU_CLR(cpu, &others);
    for (auto& worker : workers_) {
      const pthread_t thread = worker.thread.native_handle();
      cpu_set_t now;
      if (pthread_getaffinity_np(thread, sizeof now, &now) != 0) continue;
      if (!CPU_EQUAL(&now, &worker.given)) continue;
      if (pthread_setaffinity_np(thread, sizeof others, &others) == 0) worker.given = others;
    }
  }

  void serve(int32_t number) {
    std::atomic<int>& on = on_[number];
    const ExactSmallNumbers exact;
    inside = true;
    uint64_t seen = 0;
    for (;;) {
      wait_for_news(seen, on);
      Job* job = nullptr;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (stop_) return;
        seen = generation_.load(std::memory_order_relaxed);
        job = job_;
        if (job) busy_.fetch_add(1, std::memory_order_relaxed);
      }
      if (!job) continue;
      job->work(number);
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  void wait_for_news(uint64_t seen, std::atomic<int>& on) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (const int cpu = sched_getcpu(); cpu != on.load(std::memory_order_relaxed))
        on.store(cpu, std::memory_order_relaxed);
      if (std::chrono::steady_clock::now() > end) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, [&] { return generation_.load() != seen; });
        sleepers_.fetch_sub(1);
        return;
      }
      __builtin_ia32_pause();
    }
  }

  static constexpr int kNowhere = -1;

  const int32_t wanted_;
  struct Worker {
    std::thread thread;
    cpu_set_t given;  // where it may run, unless somebody else has said otherwise
  };
  std::vector<Worker> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::atomic<int>> on_;  // the CPU where each worker was last
  cpu_set_t allowed_;                 // CPUs of the process
  int avoided_ = kNowhere;
  Job* job_ = nullptr;
  bool stop_ = false;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> busy_{0}, sleepers_{0};
};

std::atomic<int32_t> wanted{0};     // 0: not chosen yet
std::atomic<bool> is_set{false};    // by a user, not as the default
std::mutex* turn = new std::mutex;  // held by the caller whose job the pool runs
Pool* pool = nullptr;               // made by the first job that needs it
std::atomic<bool> is_child{false};

// The threads do not exist in a forked child: it starts a pool of its own. What the parent's pool
// held is left as it is, since its mutexes may be in any state.
void after_fork() {
  turn = new std::mutex;
  pool = nullptr;
  inside = false;
  is_child = true;
  if (!is_set) wanted = 0;  // a child may be given other CPUs
}

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, after_fork); });
}

// The first number of a file; 0 if there is none, or it is "max".
double number_in(const std::string& path) {
  double number = 0;
  std::ifstream(path) >> number;
  return number;
}

// CPUs that a control group may use at once, of the second version or the first; 0: any number.
double quota_of(const std::string& group, bool second) {
  if (!second) {
    const double period = number_in(group + "/cpu.cfs_period_us");
    return period > 0 ? std::max(0.0, number_in(group + "/cpu.cfs_quota_us") / period) : 0;
  }
  double quota = 0, period = 0;
  std::ifstream(group + "/cpu.max") >> quota >> period;
  return period > 0 ? quota / period : 0;
}

// The least of this process's group and of those around it, told as "0::/path", or as
// "4:cpu,cpuacct:/path" by the first version. In a container the path may be that outside of it.
int32_t cgroup_limit() {
  int32_t least = INT32_MAX;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t begin = line.find(':') + 1, end = line.find(':', begin);
    if (begin == 0 || end == std::string::npos) continue;
    const std::string controllers = "," + line.substr(begin, end - begin) + ",";
    const bool second = controllers == ",,";
    if (!second && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string root = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    for (std::string own = line.substr(end + 1);; own.resize(own.rfind('/'))) {
      const double quota = quota_of(root + own, second);
      if (quota > 0) least = std::min(least, std::max(1, static_cast<int32_t>(quota + 0.5)));
      if (own.find('/') == std::string::npos) break;
    }
  }
  return least;
}

}  // namespace

int32_t usable_cpus() {
  cpu_set_t set;
  const int32_t own = find_cpus(set) ? static_cast<int32_t>(CPU_COUNT(&set))
                                     : static_cast<int32_t>(std::thread::hardware_concurrency());
  return std::max(1, std::min(own, cgroup_limit()));
}

int32_t num_threads() {
  int32_t n = wanted.load(std::memory_order_relaxed);
  if (n == 0) {
    watch_forks();  // a child finds its own number
    wanted.store(n = usable_cpus());
  }
  return n;
}

bool forked() {
  watch_forks();
  return is_child;
}

void note_fork() { is_child = true; }

void set_num_threads(int32_t n) {
  is_set = true;
  wanted.store(std::max(1, n));
}

void parallel(int64_t n, void (*body)(void* context, int64_t i), void* context) {
  parallel_on(num_threads(), n, body, context);
}

void parallel_on(int32_t threads, int64_t n, void (*body)(void* context, int64_t i),
                 void* context) {
  if (n <= 1 || threads == 1 || inside || !turn->try_lock()) return run_alone(n, body, context);
  const std::unique_lock<std::mutex> lock(*turn, std::adopt_lock);
  if (pool == nullptr || pool->wanted() != threads) {
    watch_forks();
    delete pool;
    pool = nullptr;  // as there may be no memory for another one
    pool = new Pool(threads);
  }
  Job job(n, threads, body, context);
  inside = true;
  pool->run(job);
  inside = false;
}

}  // namespace nativeops::cpu
