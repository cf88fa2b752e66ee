// The thread pool: workers that sleep when idle, a caller that takes part.
//
// parallel_for(n, threads, body) runs body(0) .. body(n - 1), each exactly once.
// The caller claims indices like everybody else and waits only for indices that a
// worker has claimed, so a worker that never wakes up costs nothing. Indices are
// the unit of work: whoever runs them, the result is the same. They are handed out in
// order, one by one; where there are very many, in short runs, so that hundreds of workers
// do not queue for the counter.
//
// - threads <= 1, n <= 1, a call from inside a worker, or a pool that another
//   caller is using: the body runs in the calling thread.
// - After fork() the child starts with an empty pool.
// - The first exception thrown by a body is rethrown in the caller.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace tegula {

using ParallelBody = void (*)(void* context, int64_t index);
using ParallelLeave = void (*)();

// `leave`, unless null, is called by every thread that took part when it has run its last index.
void parallel_for(int64_t n, int threads, ParallelBody body, void* context,
                  ParallelLeave leave = nullptr);

template <class Body>
void parallel_for(int64_t n, int threads, Body&& body, ParallelLeave leave = nullptr) {
  using Plain = std::remove_reference_t<Body>;
  parallel_for(
      n, threads, [](void* context, int64_t index) { (*static_cast<Plain*>(context))(index); },
      const_cast<void*>(static_cast<const void*>(&body)), leave);
}

// Indices that a thread takes at once: one, unless there are more than this many for each.
inline constexpr int64_t kRunsOfThread = 32;
inline int64_t indices_at_once(int64_t n, int threads) {
  return threads > 1 ? std::max<int64_t>(1, n / (kRunsOfThread * threads)) : 1;
}
// From an index to the one that the same thread will probably run next.
inline int64_t steps_ahead(int64_t n, int threads) {
  return indices_at_once(n, threads) > 1 ? 1 : threads;
}

// Threads for a call that was given `requested`: n > 0 by the user, -n by torch, whose own
// setting is n, 0 by nobody. First one set wins: the user's argument, set_num_threads, torch's
// setting, TEGULA_NUM_THREADS, OMP_NUM_THREADS, and what the process may use (affinity and
// cgroup quota).
int num_threads(int requested = 0);
void set_num_threads(int threads);  // 0 forgets the setting

// Work below this many scalar operations is not worth waking a worker for.
inline constexpr double kSerialWork = 4e6;

inline int threads_for(double work, int requested) {
  return work < kSerialWork ? 1 : num_threads(requested);
}

}  // namespace tegula
