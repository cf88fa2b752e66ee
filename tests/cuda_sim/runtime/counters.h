// What launches did, for tests that ask whether work was skipped or banks of shared memory
// conflict.
#pragma once

#include <stdint.h>

namespace cusim {

struct Counters {
  uint64_t launches, blocks;
  uint64_t mma, wgmma;          // instructions of a warp
  uint64_t ldmatrix;            // matrices of eight rows
  uint64_t ldmatrix_conflicts;  // of which rows lie in the same banks
};
extern Counters counters;

}  // namespace cusim
