// Ids outside their table: the first one is remembered for the host.
#pragma once

#include "../../cuda/device.cuh"
#include "../../cuda/place.h"

namespace tegula {

TEGULA_DEVICE bool is_inside(int64_t id, int64_t limit) { return id >= 0 && id < limit; }

TEGULA_DEVICE void report(IdFault* fault, IdArgument argument, int64_t id, int64_t place,
                          int64_t limit) {
  if (fault == nullptr || atomicCAS(&fault->claimed, 0u, 1u) != 0u) return;
  fault->argument = argument;
  fault->id = id;
  fault->place = place;
  fault->limit = limit;
  __threadfence_system();  // the host sees the rest before it sees `found`
  *static_cast<volatile uint32_t*>(&fault->found) = 1u;
}

}  // namespace tegula
