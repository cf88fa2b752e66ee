#include "parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace tegula {
namespace {

constexpr int kMaxThreads = 1024;
constexpr auto kSpin = std::chrono::microseconds(15);

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

thread_local bool inside_pool = false;

// One parallel_for. Lives on the caller's stack: workers enter it under the pool's
// mutex, and the caller leaves only when no worker is inside.
struct Job {
  ParallelBody body;
  void* context;
  int64_t size;
  int64_t step;  // indices that are taken at once
  ParallelLeave leave;
  alignas(64) std::atomic<int64_t> next{0};  // alone in its cache line: every worker writes it
  alignas(64) std::atomic<bool> failed{false};
  std::atomic<int> seats{0};   // workers that may still enter
  std::atomic<int> inside{0};  // workers that have entered and not left
  std::exception_ptr error{};

  void run() {
    for (;;) {
      const int64_t begin = next.fetch_add(step, std::memory_order_relaxed);
      if (begin >= size) break;
      try {
        const int64_t end = std::min(size, begin + step);
        for (int64_t index = begin; index < end; ++index) body(context, index);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
        next.store(size, std::memory_order_relaxed);
      }
    }
    if (leave != nullptr) leave();
  }
};

class Pool {
 public:
  void run(Job& job, int threads) {
    grow(threads - 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job.seats.store(threads - 1, std::memory_order_relaxed);
      job_ = &job;
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (asleep_.load() > 0) wake_.notify_all();
    job.run();
    {
      // No worker may enter from here on; those inside are finishing their index.
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = nullptr;
    }
    while (job.inside.load(std::memory_order_acquire) > 0) {
      cpu_relax();
      if (++spins_ % 4096 == 0) std::this_thread::yield();
    }
  }

  std::mutex& callers() { return callers_; }

 private:
  void grow(int workers) {
    while (static_cast<int>(workers_.size()) < workers) {
      // Signals belong to the program's own threads.
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      try {
        workers_.emplace_back([this] { work(); });
        workers_.back().detach();
      } catch (const std::exception&) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return;  // the caller does the work alone
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }

  void work() {
    inside_pool = true;
    uint64_t seen = 0;
    for (;;) {
      Job* job = nullptr;
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; generation_.load(std::memory_order_acquire) == seen; ++i) {
        cpu_relax();
        if (i % 16 == 15 && std::chrono::steady_clock::now() - start > kSpin) break;
      }
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (generation_.load(std::memory_order_relaxed) == seen) {
          asleep_.fetch_add(1);
          wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
          asleep_.fetch_sub(1);
        }
        seen = generation_.load(std::memory_order_relaxed);
        if (job_ != nullptr && job_->seats.load(std::memory_order_relaxed) > 0) {
          job = job_;
          job->seats.fetch_sub(1, std::memory_order_relaxed);
          job->inside.fetch_add(1, std::memory_order_relaxed);
        }
      }
      if (job == nullptr) continue;
      job->run();
      job->inside.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex callers_;  // held by the one caller that uses the pool
  std::mutex mutex_;    // guards job_ and entering it
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> asleep_{0};
  Job* job_ = nullptr;
  unsigned spins_ = 0;
  std::vector<std::thread> workers_;
};

// Never destroyed: workers may outlive main(). After fork() the child has none of
// the workers, so it drops the pool (and leaks its few bytes) and makes a new one.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  Pool* current = the_pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  static std::atomic<bool> registered{false};
  if (!registered.exchange(true)) {
    pthread_atfork(nullptr, nullptr, [] {
      the_pool.store(nullptr);
      inside_pool = false;
    });
  }
  Pool* fresh = new Pool;
  if (the_pool.compare_exchange_strong(current, fresh)) return *fresh;
  delete fresh;
  return *current;
}

int threads_of(const char* variable, bool ours) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  // OMP_NUM_THREADS may be a list, one entry a nesting level: the first one counts.
  if (end == text || (*end != '\0' && (ours || *end != ',')) || value < 1) {
    if (!ours) return 0;
    throw ValueError(message(variable, " must be a number of threads, got '", text, "'"));
  }
  return static_cast<int>(std::min<long>(value, kMaxThreads));
}

// CPUs that the cgroup's quota pays for, rounded up; 0 when there is no quota.
int quota_cpus() {
  double quota = 0, period = 0;
  std::string word;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> word >> period && word != "max") {
    quota = std::strtod(word.c_str(), nullptr);
  } else if (std::ifstream v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); v1 >> quota && quota > 0) {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? std::max(1, static_cast<int>((quota + period - 1) / period)) : 0;
}

int default_threads() {
  if (const int n = threads_of("TEGULA_NUM_THREADS", true)) return n;
  if (const int n = threads_of("OMP_NUM_THREADS", false)) return n;
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
#endif
  if (const int quota = quota_cpus()) cpus = std::min(cpus, quota);
  return std::clamp(cpus, 1, kMaxThreads);
}

std::atomic<int> chosen_threads{0};

}  // namespace

void set_num_threads(int threads) { chosen_threads.store(std::clamp(threads, 0, kMaxThreads)); }

int num_threads(int requested) {
  if (requested > 0) return std::min(requested, kMaxThreads);
  if (const int chosen = chosen_threads.load()) return chosen;
  if (requested < 0) return -std::max(requested, -kMaxThreads);
  static const int fallback = default_threads();
  return fallback;
}

void parallel_for(int64_t n, int threads, ParallelBody body, void* context, ParallelLeave leave) {
  threads = static_cast<int>(std::min<int64_t>(threads, n));
  if (threads > 1 && !inside_pool) {
    Pool& shared = pool();
    std::unique_lock<std::mutex> turn(shared.callers(), std::try_to_lock);
    if (turn.owns_lock()) {
      Job job{body, context, n, indices_at_once(n, threads), leave};
      inside_pool = true;
      shared.run(job, threads);
      inside_pool = false;
      if (job.error) std::rethrow_exception(job.error);
      return;
    }
  }
  for (int64_t index = 0; index < n; ++index) body(context, index);
  if (leave != nullptr) leave();
}

}  // namespace tegula
