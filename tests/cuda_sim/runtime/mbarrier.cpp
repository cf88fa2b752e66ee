// mbarriers: arrivals release what a warp has done, a wait that succeeds acquires it.
#include <string.h>

#include <algorithm>
#include <map>

#include "order.h"
#include "proxy.h"
#include "tensor_map.h"

namespace cusim {

namespace {

struct Landing {
  uint32_t target;
  std::vector<char> data;
  int swizzle;
};

struct MBarrier {
  uint32_t count = 0, arrived = 0, phase = 0;
  int64_t expected_bytes = 0;  // that have not landed
  uint32_t seen[kMaxWarps] = {}, seen_when_complete[kMaxWarps] = {};
  Record made = 0;
  std::vector<Landing> copies;
  std::vector<Fiber*> waiting;
};
std::map<uint32_t, MBarrier> mbarriers;

// The barrier, once its initialisation is visible to the running thread.
MBarrier& find_mbarrier(uint64_t offset, At at) {
  const auto found = mbarriers.find(uint32_t(offset));
  if (found == mbarriers.end()) fail(at, "mbarrier used before mbarrier.init");
  const Record last = shared_cell(uint32_t(offset)).write;
  if (last != found->second.made) fail(at, "mbarrier used after its memory was overwritten");
  if (!ordered_before_now(last))
    fail(at, "race: mbarrier used before its initialisation is visible");
  return found->second;
}

void wake_waiters(MBarrier& barrier) {
  std::vector<Fiber*> waiting;
  waiting.swap(barrier.waiting);
  for (Fiber* fiber : waiting) wake(fiber);
}

void complete_phase(MBarrier& barrier) {
  if (barrier.arrived != barrier.count || barrier.expected_bytes != 0 || !barrier.copies.empty()) {
    return;
  }
  barrier.arrived = 0;
  ++barrier.phase;
  block.idle_turns = 0;
  memcpy(barrier.seen_when_complete, barrier.seen, sizeof barrier.seen);
  wake_waiters(barrier);
}

void release_into(MBarrier& barrier) {
  Warp& warp = *current()->warp;
  raise(barrier.seen, warp.seen);
  barrier.seen[warp.index] = clock_of(warp.stamp);
  tick(warp);
}

// Whatever else the phase needs is there: now the copies land.
void land_copies(MBarrier& barrier, At at) {
  for (const Landing& copy : barrier.copies) {
    const uint32_t bytes = uint32_t(copy.data.size());
    set_pending(copy.target, bytes, false);
    for (uint32_t i = 0; i < bytes; i += 16) {
      memcpy(block.shared + swizzled(copy.target + i, copy.swizzle), &copy.data[i], 16);
    }
    barrier.expected_bytes -= bytes;
  }
  barrier.copies.clear();
  if (barrier.expected_bytes < 0) fail(at, "mbarrier: more bytes were copied than expected");
}

}  // namespace

void begin_mbarriers() { mbarriers.clear(); }

void init_mbarrier(uint64_t offset, uint32_t count, At at) {
  if (count == 0 || count >= 1u << 20) fail(at, "mbarrier.init: a count of %u", count);
  write_shared(offset, 8, kWeak, at);
  MBarrier& barrier = mbarriers[uint32_t(offset)] = MBarrier{};
  barrier.count = count;
  barrier.made = shared_cell(uint32_t(offset)).write;
}

void invalidate_mbarrier(uint64_t offset, At at) {
  const MBarrier& barrier = find_mbarrier(offset, at);
  if (!barrier.waiting.empty()) fail(at, "mbarrier.inval: threads wait for it");
  mbarriers.erase(uint32_t(offset));
}

// The token names the phase by its parity.
uint64_t arrive_at_mbarrier(uint64_t offset, uint32_t count, uint32_t bytes, At at) {
  MBarrier& barrier = find_mbarrier(offset, at);
  const uint64_t token = barrier.phase & 1;
  barrier.expected_bytes += bytes;
  barrier.arrived += count;
  if (barrier.arrived > barrier.count) fail(at, "mbarrier: more arrivals than its count");
  release_into(barrier);
  complete_phase(barrier);
  if (barrier.arrived == barrier.count) wake_waiters(barrier);
  return token;
}

void expect_bytes(uint64_t offset, uint32_t bytes, At at) {
  find_mbarrier(offset, at).expected_bytes += bytes;
}

// cp.async that a barrier waits for lands at once: its readers are ordered by the barrier anyway.
void copies_arrive(uint64_t offset, bool counted, At at) {
  commit_copies();
  wait_for_copies(0, at);
  if (counted) {
    arrive_at_mbarrier(offset, 1, 0, at);
  } else {
    release_into(find_mbarrier(offset, at));
  }
}

bool wait_for_mbarrier(uint64_t offset, uint32_t parity, bool blocks, At at) {
  for (;;) {
    MBarrier& barrier = find_mbarrier(offset, at);
    if (barrier.arrived == barrier.count && !barrier.copies.empty() &&
        (barrier.phase & 1) == parity) {
      land_copies(barrier, at);
      complete_phase(barrier);
    }
    if ((barrier.phase & 1) != parity) {
      join(*current()->warp, barrier.seen_when_complete);
      return true;
    }
    if (!blocks) {
      give_way(at);
      return false;
    }
    current()->state = Fiber::kWaiting;
    barrier.waiting.push_back(current());
    suspend("an mbarrier wait", at);
  }
}

void land_later(uint64_t offset, uint32_t target, std::vector<char> data, int swizzle, At at) {
  const uint32_t bytes = uint32_t(data.size());
  for (uint32_t i = 0; i < bytes; i += 16) {
    proxy_write(target + i, at);
    memset(block.shared + target + i, 0xFF, 16);
  }
  set_pending(target, bytes, true);
  MBarrier& barrier = find_mbarrier(offset, at);
  release_into(barrier);
  barrier.copies.push_back({target, std::move(data), swizzle});
  wake_waiters(barrier);
}

std::string mbarriers_waited_for() {
  std::string text;
  for (const auto& [offset, barrier] : mbarriers) {
    if (barrier.waiting.empty()) continue;
    text += " mbarrier at shared memory+" + std::to_string(offset) + ": phase " +
            std::to_string(barrier.phase) + ", " + std::to_string(barrier.arrived) + " of " +
            std::to_string(barrier.count) + " arrived, " + std::to_string(barrier.expected_bytes) +
            " bytes outstanding;";
  }
  return text;
}

std::string copies_left_behind() {
  for (const auto& [offset, barrier] : mbarriers) {
    if (!barrier.copies.empty()) {
      return "a block exits with bulk copies in flight for the mbarrier at shared memory+" +
             std::to_string(offset);
    }
  }
  return "";
}

}  // namespace cusim
