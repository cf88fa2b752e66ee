#include "warp.h"

namespace cusim {

namespace {

struct Nothing {};

// The same answer for every lane of the mask, from a value that each brings.
template <class T, class Answer>
uint32_t ask(const char* operation, T value, uint32_t mask, At at, Answer answer) {
  uint32_t found;
  collective(operation, mask, &value, sizeof value, &found, sizeof found, at, [&](Warp& warp) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if (mask >> lane & 1) to_lane(warp, lane, answer(warp, lane));
    }
  });
  return found;
}

}  // namespace

void sync_warp(uint32_t mask, At at) {
  Nothing nothing;
  // Lanes that have exited need not come.
  collective("__syncwarp", mask & current()->warp->live, &nothing, 0, &nothing, 0, at,
             [](Warp& warp) { tick(warp); });
}

uint32_t shuffle(Shuffle mode, uint32_t value, uint32_t lane, uint32_t bounds, uint32_t mask,
                 bool* inside, At at) {
  static const char* const kNames[] = {"shfl.up", "shfl.down", "shfl.bfly", "shfl.idx"};
  struct In {
    uint32_t value, lane, bounds;
  } in{value, lane, bounds};
  struct Out {
    uint32_t value, inside;
  } out;
  collective(kNames[mode], mask, &in, sizeof in, &out, sizeof out, at, [&](Warp& warp) {
    for (uint32_t self = 0; self < 32; ++self) {
      if (!(mask >> self & 1)) continue;
      const In own = from_lane<In>(warp, self);
      const uint32_t segment = own.bounds >> 8 & 31, clamp = own.bounds & 31, by = own.lane & 31;
      const uint32_t first = self & segment, last = first | (clamp & ~segment);
      const int source = mode == kShuffleUp     ? int(self) - int(by)
                         : mode == kShuffleDown ? int(self + by)
                         : mode == kShuffleBfly ? int(self ^ by)
                                                : int(first | (by & ~segment));
      const bool reached = mode == kShuffleUp ? source >= int(last) : source <= int(last);
      const uint32_t from = reached ? uint32_t(source) : self;
      if (!(mask >> from & 1)) fail(at, "shuffle reads lane %u, which is outside its mask", from);
      to_lane(warp, self, Out{from_lane<In>(warp, from).value, reached});
    }
  });
  *inside = out.inside;
  return out.value;
}

uint32_t ballot(bool predicate, uint32_t mask, At at) {
  return ask("vote", uint32_t(predicate), mask, at, [=](const Warp& warp, uint32_t) {
    uint32_t yes = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if (mask >> lane & 1) yes |= from_lane<uint32_t>(warp, lane) << lane;
    }
    return yes;
  });
}

static uint32_t lanes_alike(const Warp& warp, uint32_t mask, uint32_t lane) {
  uint32_t alike = 0;
  for (uint32_t other = 0; other < 32; ++other) {
    if ((mask >> other & 1) &&
        from_lane<uint64_t>(warp, other) == from_lane<uint64_t>(warp, lane)) {
      alike |= 1u << other;
    }
  }
  return alike;
}

uint32_t match_any(uint64_t value, uint32_t mask, At at) {
  return ask("match.any", value, mask, at,
             [=](const Warp& warp, uint32_t lane) { return lanes_alike(warp, mask, lane); });
}

uint32_t match_all(uint64_t value, uint32_t mask, At at) {
  return ask("match.all", value, mask, at, [=](const Warp& warp, uint32_t lane) {
    return lanes_alike(warp, mask, lane) == mask ? mask : 0;
  });
}

static uint32_t combine(Reduce kind, bool is_signed, uint32_t a, uint32_t b) {
  const bool less = is_signed ? int32_t(a) < int32_t(b) : a < b;
  switch (kind) {
    case kReduceAdd: return a + b;
    case kReduceMin: return less ? a : b;
    case kReduceMax: return less ? b : a;
    case kReduceAnd: return a & b;
    case kReduceOr: return a | b;
    default: return a ^ b;
  }
}

uint32_t reduce_lanes(Reduce kind, bool is_signed, uint32_t value, uint32_t mask, At at) {
  return ask("redux", value, mask, at, [=](const Warp& warp, uint32_t) {
    uint32_t lane = uint32_t(__builtin_ctz(mask));
    uint32_t sum = from_lane<uint32_t>(warp, lane);
    for (++lane; lane < 32; ++lane) {
      if (mask >> lane & 1) sum = combine(kind, is_signed, sum, from_lane<uint32_t>(warp, lane));
    }
    return sum;
  });
}

uint32_t elect(uint32_t mask, At at) {
  return ask("elect", 0u, mask, at,
             [=](const Warp&, uint32_t) { return uint32_t(__builtin_ctz(mask)); });
}

}  // namespace cusim
