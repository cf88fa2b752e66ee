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

// dbias: a block of threads has pairs of some queries and keys, for one of `owners` entries of
// dbias's leading axes (batch and heads), which stands for `sharers` batch entries and heads; and
// `group_sharers` of these. Blocks are counted by owner, group, queries and keys.
struct BiasSimtParams {
  AttentionGradArgs a;
  GradientRows rows;
  int64_t owners, sharers, groups, group_sharers;
  int64_t row_blocks, key_blocks;
  RowSteps q, k, v, grad;
  // Where blocks share entries: what each leaves, `parts` numbers of each entry side by side. An
  // owner's entries are rows_of_owner by keys_of_owner, whole blocks of them or 1. Null: no two
  // blocks share any.
  double* partials;
  int64_t rows_of_owner, keys_of_owner, parts;
};

}  // namespace tegula
