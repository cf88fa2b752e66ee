// What the lanes of a warp do together.
#pragma once

#include "order.h"

namespace cusim {

// The rendezvous that a lane comes to: that of its mask, which must share no lane with another.
inline Rendezvous& come_to(Warp& warp, const char* operation, uint32_t mask, At at) {
  Rendezvous& meeting = warp.meetings[__builtin_ctz(mask)];
  for (uint32_t others = warp.meeting; others != 0; others &= others - 1) {
    const Rendezvous& other = warp.meetings[__builtin_ctz(others)];
    const bool same = &other == &meeting && other.mask == mask && other.operation == operation;
    if (same || (other.mask & mask) == 0) continue;
    fail(at, "divergent warp: lanes are at %s with mask %08x and at %s with mask %08x (%s)",
         operation, mask, other.operation, other.mask, block.kernel->locations[other.at]);
  }
  if (meeting.arrived == 0) meeting = {0, mask, operation, at};
  return meeting;
}

// Each lane of `mask` leaves `in_bytes` bytes; the last one to arrive runs act(warp), which fills
// warp.out; each takes `out_bytes` bytes. Lanes that meet must be at the same operation.
template <class Act>
void collective(const char* operation, uint32_t mask, const void* in, uint32_t in_bytes, void* out,
                uint32_t out_bytes, At at, Act act) {
  Fiber* fiber = current();
  Warp& warp = *fiber->warp;
  if (!(mask >> fiber->lane & 1)) fail(at, "%s: the calling lane is not in its mask", operation);
  Rendezvous& meeting = come_to(warp, operation, mask, at);
  if (mask & ~warp.live) fail(at, "%s: its mask names a lane that has exited", operation);
  __builtin_memcpy(warp.in[fiber->lane], in, in_bytes);
  meeting.arrived |= 1u << fiber->lane;
  warp.meeting |= mask & -mask;
  fiber->at = at;
  if (meeting.arrived == mask) {
    act(warp);
    meeting.arrived = 0;
    warp.meeting &= ~(mask & -mask);
    block.idle_turns = 0;
    for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
      // The last to arrive gives way too, so that it has no privilege.
      wake(warp.lanes[__builtin_ctz(lanes)]);
    }
  } else {
    fiber->state = Fiber::kWaiting;
  }
  suspend(operation, at);
  __builtin_memcpy(out, warp.out[fiber->lane], out_bytes);
}

template <class T>
T from_lane(const Warp& warp, uint32_t lane) {
  T value;
  __builtin_memcpy(&value, warp.in[lane], sizeof value);
  return value;
}
template <class T>
void to_lane(Warp& warp, uint32_t lane, const T& value) {
  __builtin_memcpy(warp.out[lane], &value, sizeof value);
}

}  // namespace cusim
