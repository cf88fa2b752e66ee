// What the lanes of a warp do together.
#pragma once

#include "order.h"

namespace cusim {

// Each lane of `mask` leaves `in_bytes` bytes; the last one to arrive runs act(warp), which fills
// warp.out; each takes `out_bytes` bytes. Lanes that meet must be at the same operation.
template <class Act>
void collective(const char* operation, uint32_t mask, const void* in, uint32_t in_bytes, void* out,
                uint32_t out_bytes, At at, Act act) {
  Fiber* fiber = current();
  Warp& warp = *fiber->warp;
  if (!(mask >> fiber->lane & 1)) fail(at, "%s: the calling lane is not in its mask", operation);
  if (warp.arrived == 0) {
    warp.operation = operation;
    warp.mask = mask;
    warp.at = at;
  } else if (warp.operation != operation || warp.mask != mask) {
    fail(at, "divergent warp: lanes are at %s with mask %08x and at %s with mask %08x (%s)",
         operation, mask, warp.operation, warp.mask, block.kernel->locations[warp.at]);
  }
  if (mask & ~warp.live) fail(at, "%s: its mask names a lane that has exited", operation);
  __builtin_memcpy(warp.in[fiber->lane], in, in_bytes);
  warp.arrived |= 1u << fiber->lane;
  fiber->at = at;
  if (warp.arrived == mask) {
    act(warp);
    warp.arrived = 0;
    block.idle_turns = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      // The last to arrive gives way too, so that it has no privilege.
      if (mask >> lane & 1) wake(warp.lanes[lane]);
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
