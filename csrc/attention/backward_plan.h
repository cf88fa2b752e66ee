// How the backward pass is cut into units, and which of them many tasks share.
//
// A unit is a batch entry and key/value head, or a segment of it: where a mask's rows part into
// those before and those behind that share no key, as at the border of two packed documents,
// they are segments. Sums over rows never cross a border of segments, so the cut is made by
// the mask alone, never by the number of threads.
#pragma once

#include <vector>

#include "backward.h"

namespace tegula {

struct GradUnit {
  int32_t batch, key_head;
  int32_t query_begin, query_end;
  int32_t key_begin, key_end;
  double cost;  // multiply-adds and what is about as long
};

// One cell of a shared unit, and how many cells of its row chunk and of its key chunk are added
// up before it, so that sums keep their order.
struct GradCell {
  int32_t unit;  // among the shared
  int32_t row_chunk, key_chunk;
  int32_t left, above;
  double cost;
};

struct BackwardPlan {
  int64_t heads = 1;             // of a unit
  std::vector<GradUnit> whole;   // of one task each
  std::vector<GradUnit> shared;  // of many
  // Of the shared, where some row sees some key; taken after the whole ones, diagonal by
  // diagonal: who takes them in this order waits for cells already taken.
  std::vector<GradCell> cells;

  AttentionTask task(const GradUnit& unit) const;
};

BackwardPlan plan_backward(const AttentionGradArgs& a, const AttentionGradKernels& kernels,
                           int threads, bool costs);

// When the last of `threads` is done, relative to when all would be with the work spread evenly.
double imbalance_of(const BackwardPlan& plan, int threads);

}  // namespace tegula
