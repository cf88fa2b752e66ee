// The order of memory accesses: what a warp does after a tick of its clock is later than what it
// did before, and what it joins is seen by all that follows.
#pragma once

#include "state.h"

namespace cusim {

void tick(Warp& warp);
void join(Warp& warp, const uint32_t* clocks);
void raise(uint32_t* clocks, const uint32_t* others);  // each to the later of the two

// Of a block.
void begin_clocks();
void begin_barriers();
void thread_exited();  // barriers may have waited for it only

}  // namespace cusim
