// How the forward pass is cut into tasks, and what each of them costs.
//
// Tasks are whole blocks of rows, so they change no bit of a result; nor do the key chunks that
// become tasks of their own where rows are too few.
#pragma once

#include <vector>

#include "attention.h"

namespace tegula {

struct ForwardTask {
  int32_t batch, head;
  int32_t row_begin, row_end;  // of the unit
  int32_t chunk_begin, chunk_end;
  int64_t partial;  // place of the first chunk's partial result
  double cost;      // multiply-adds and what is about as long
};

struct ForwardPlan {
  int64_t heads = 1;      // of a unit: the heads whose queries are taken together
  int64_t task_rows = 0;  // of a task, at most
  std::vector<ForwardTask> tasks;
  // One a chunk and task, where chunks are tasks of their own; the tasks above join them.
  std::vector<ForwardTask> parts;
  int64_t partials = 0;

  AttentionTask task(const AttentionArgs& a, const ForwardTask& of) const;
};

// For `threads` threads. One thread needs no costs, and gets none unless they are asked for.
ForwardPlan plan_forward(const AttentionArgs& a, const AttentionKernels& kernels, int threads,
                         bool costs);

}  // namespace tegula
