// What the kernels of forward_simt.cuh are given.
#pragma once

#include "../attention.h"
#include "simt_shape.h"

namespace tegula {

// A group of blocks has some rows of a unit and up to kColumns columns of its values; groups are
// counted unit by unit, slab by slab of columns, block of rows by block of rows. It is one block
// of threads, or one for each chunk of keys.
struct ForwardSimtParams {
  AttentionArgs a;
  int64_t row_blocks, column_slabs, chunks;
  bool split;      // a block of threads for each chunk
  void* partials;  // of every block, see Partial; null where there is one chunk
  RowSteps q, k, v, out;
};

// Numbers of a block's partial result: of each row of a thread the sums of 8 columns, a maximum and
// a sum.
TEGULA_INLINE constexpr int64_t partial_numbers(int64_t rows_a_thread) {
  return kSimtThreads * rows_a_thread * (2 * kRun + 2);
}

}  // namespace tegula
