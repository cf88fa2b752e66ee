// Clocks of warps, and the barriers that order them.
#include "order.h"

#include <string.h>

#include <algorithm>

namespace cusim {

namespace {

constexpr uint32_t kBarriers = 16;

struct Barrier {
  uint32_t arrived = 0, count = 0;  // count 0: every thread that has not exited
  uint32_t yes = 0;                 // votes
  uint32_t seen[kMaxWarps] = {}, fenced[kMaxWarps] = {};
  std::vector<Fiber*> waiting;
};
Barrier barriers[kBarriers];

void open(Barrier& barrier) {
  block.idle_turns = 0;
  Barrier done = std::move(barrier);
  barrier = Barrier{};
  bool joined[kMaxWarps] = {};
  for (Fiber* fiber : done.waiting) {
    if (!joined[fiber->warp_index]) {
      joined[fiber->warp_index] = true;
      join(*fiber->warp, done.seen);
      raise(fiber->warp->fenced_by_all, done.fenced);
      tick(*fiber->warp);
    }
    fiber->votes = {done.yes, done.arrived};
    wake(fiber);
  }
}

bool complete(const Barrier& barrier) {
  return barrier.arrived > 0 &&
         barrier.arrived == (barrier.count == 0 ? block.live : barrier.count);
}

// An aligned barrier is one instruction for the whole warp.
void check_aligned(const Barrier& barrier, const Fiber& fiber, At at) {
  const char* const* locations = block.kernel->locations;
  for (const Fiber* other : barrier.waiting) {
    if (other->warp == fiber.warp && other->at != at) {
      fail(at, "divergent barrier: lanes of one warp wait at %s as well", locations[other->at]);
    }
  }
}

Barrier& arrive(uint32_t number, uint32_t count, bool aligned, At at) {
  if (number >= kBarriers) fail(at, "barrier %u of %u", number, kBarriers);
  if (count % 32) fail(at, "barrier for %u threads, not a multiple of 32", count);
  Barrier& barrier = barriers[number];
  Fiber* fiber = current();
  if (barrier.arrived > 0 && barrier.count != count) {
    fail(at, "barrier %u is used with counts %u and %u", number, barrier.count, count);
  }
  if (aligned) check_aligned(barrier, *fiber, at);
  barrier.count = count;
  ++barrier.arrived;
  const Warp& warp = *fiber->warp;
  raise(barrier.seen, warp.seen);
  raise(barrier.fenced, warp.fenced);
  barrier.seen[warp.index] = clock_of(warp.stamp);
  return barrier;
}

}  // namespace

void tick(Warp& warp) {
  const uint32_t clock = clock_of(warp.stamp);
  if (clock >= kMaxClock) fail(0, "more synchronisation in one block than the simulator counts");
  warp.seen[warp.index] = clock;
  warp.stamp += 1ull << kClockShift;
}

void raise(uint32_t* clocks, const uint32_t* others) {
  for (size_t i = 0; i < block.warps.size(); ++i) clocks[i] = std::max(clocks[i], others[i]);
}

void join(Warp& warp, const uint32_t* clocks) {
  for (uint32_t w = 0; w < block.warps.size(); ++w) {
    if (w != warp.index) warp.seen[w] = std::max(warp.seen[w], clocks[w]);
  }
}

void begin_clocks() {
  for (Warp& warp : block.warps) {
    memset(warp.seen, 0, sizeof warp.seen);
    memset(warp.fenced, 0, sizeof warp.fenced);
    memset(warp.fenced_by_all, 0, sizeof warp.fenced_by_all);
    warp.stamp = uint64_t(block.number) << kBlockShift | 1ull << kClockShift |
                 uint64_t(warp.index) << kWarpShift;
  }
}

void begin_barriers() {
  for (Barrier& barrier : barriers) barrier = Barrier{};
}

void thread_exited() {
  for (Barrier& barrier : barriers) {
    if (complete(barrier)) open(barrier);
  }
}

static BlockVotes wait_at(Barrier& barrier, At at) {
  Fiber* fiber = current();
  barrier.waiting.push_back(fiber);
  fiber->state = Fiber::kWaiting;
  fiber->at = at;
  if (complete(barrier)) open(barrier);
  suspend("a barrier", at);
  return fiber->votes;
}

void sync_threads(uint32_t number, uint32_t count, bool aligned, At at) {
  wait_at(arrive(number, count, aligned, at), at);
}

void arrive_at_barrier(uint32_t number, uint32_t count, bool aligned, At at) {
  Barrier& barrier = arrive(number, count, aligned, at);
  tick(*current()->warp);
  if (complete(barrier)) open(barrier);
}

BlockVotes vote_of_block(uint32_t number, uint32_t count, bool predicate, bool aligned, At at) {
  Barrier& barrier = arrive(number, count, aligned, at);
  barrier.yes += predicate;
  return wait_at(barrier, at);
}

}  // namespace cusim
