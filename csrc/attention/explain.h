// What a call of attention would do, counted by what plans and cuts it.
#pragma once

#include <vector>

#include "backward.h"

namespace tegula {

struct AttentionPlan {
  TileCounts tiles;
  int64_t block_rows = 0, key_tile = 0;
  int64_t pairs = 0;            // visible (query, key), over batch entries and heads
  bool dot = false;             // pairs of bfloat16 are multiplied
  std::vector<double> costs;    // of the tasks in the order in which they are taken
  int64_t shared_units = 0;     // backward: units that many tasks work on
  int64_t key_chunk_tasks = 0;  // forward: tasks of one chunk of keys
  int threads = 1;              // that would run
  double imbalance = 1;         // of the plan on these threads, the even spread being 1
};

// `args` needs shapes, the mask and which options are set, but no data.
AttentionPlan explain_forward(const AttentionArgs& args, int threads);
AttentionPlan explain_backward(const AttentionGradArgs& args, int threads);

}  // namespace tegula
