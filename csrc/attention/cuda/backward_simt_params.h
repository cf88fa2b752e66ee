// What the kernels of backward_simt.cuh and bias_simt.cuh are given.
#pragma once

#include "gradient_rows.h"
#include "simt_shape.h"

namespace tegula {

// Blocks of threads are counted unit by unit, slab by slab of kColumns columns, block by block of
// rows (dq) or keys (dk, dv).
struct BackwardSimtParams {
  AttentionGradArgs a;
  GradientRows rows;
  int64_t blocks, column_slabs;
  RowSteps q, k, v, grad, dq, dk, dv;
};

// dbias: a block of threads owns pairs of some queries and keys, for one of `owners` entries of
// dbias's leading axes (batch and heads), which stands for `sharers` batch entries and heads.
struct BiasSimtParams {
  AttentionGradArgs a;
  GradientRows rows;
  int64_t owners, sharers, row_blocks, key_blocks;
  RowSteps q, k, v, grad;
  // Where dbias repeats along queries or keys: `entries` numbers, each the sum of `parts` that
  // blocks leave one after the other.
  double* partials;
  int64_t entries, parts;
};

}  // namespace tegula
