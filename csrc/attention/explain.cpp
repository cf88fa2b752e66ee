#include "explain.h"

#include "../base/arena.h"
#include "../base/parallel.h"
#include "../isa/select.h"
#include "../mask/mask.h"
#include "backward_plan.h"
#include "balance.h"
#include "forward_plan.h"
#include "seen_rows.h"

namespace tegula {
namespace {

// Keys of the row that its interval and the dense mask both show.
int64_t visible_keys(const AttentionArgs& a, const SeenRows& rows, int64_t batch, int64_t head,
                     int64_t query) {
  const RowKeys keys = rows.keys(query);
  const auto* row = a.dense.at<uint8_t>(batch * a.dense.stride[0] + head * a.dense.stride[1] +
                                        query * a.dense.stride[2]);
  int64_t count = 0;
  for (int64_t key = keys.lo; key < keys.hi; ++key) {
    if (key == keys.gap_lo && keys.has_gap()) key = keys.gap_hi;
    count += row[key * a.dense.stride[3]] != 0;
  }
  return count;
}

int64_t visible_pairs(const AttentionArgs& a) {
  const auto differs = [&](int axis) {
    return rows_differ(a, axis) || (a.dense && a.dense.stride[axis] != 0);
  };
  const int64_t batches = differs(0) ? a.batch : 1, heads = differs(1) ? a.heads : 1;
  int64_t pairs = 0;
  for (int64_t batch = 0; batch < batches; ++batch) {
    for (int64_t head = 0; head < heads; ++head) {
      const SeenRows rows(a, batch, head);
      for (int64_t query = 0; query < a.q_len; ++query) {
        pairs += a.dense ? visible_keys(a, rows, batch, head, query) : rows.count(query);
      }
    }
  }
  return pairs * (a.batch / batches) * (a.heads / heads);
}

AttentionPlan explain(const AttentionArgs& a, const ForwardPlan& forward) {
  AttentionPlan plan;
  const AttentionKernels& kernel = kernels().attention[static_cast<int>(a.q.dtype)];
  plan.block_rows = kernel.block_rows, plan.key_tile = kernel.key_tile, plan.dot = kernel.pairs;
  plan.pairs = visible_pairs(a);
  const size_t scratch_bytes = kernel.scratch_bytes(a, forward.task_rows);
  for (const ForwardTask& task : forward.tasks) {
    kernel.count(a, forward.task(a, task), &plan.tiles, thread_arena().reserve(scratch_bytes));
  }
  thread_arena().trim();
  return plan;
}

bool empty(const AttentionArgs& a) { return a.batch * a.heads * a.q_len == 0; }

}  // namespace

AttentionPlan explain_forward(const AttentionArgs& args, int threads) {
  if (empty(args)) return {};
  AttentionArgs a = args;
  TakenArena cells;
  if (a.dense) a.cells = mask_cells(a.dense, cells, threads);
  threads = threads_for(attention_work(a), threads);
  const AttentionKernels& kernel = kernels().attention[static_cast<int>(a.q.dtype)];
  const ForwardPlan forward = plan_forward(a, kernel, threads, true);
  AttentionPlan plan = explain(a, forward);
  plan.threads = threads;
  const auto& tasks = forward.parts.empty() ? forward.tasks : forward.parts;
  for (const ForwardTask& task : tasks) plan.costs.push_back(task.cost);
  plan.key_chunk_tasks = static_cast<int64_t>(forward.parts.size());
  plan.imbalance = imbalance_of(tasks, threads);
  return plan;
}

AttentionPlan explain_backward(const AttentionGradArgs& args, int threads) {
  if (empty(args)) return {};
  AttentionGradArgs a = args;
  TakenArena cells;
  if (a.dense) a.cells = mask_cells(a.dense, cells, threads);
  threads = threads_for(2.5 * attention_work(a), threads);
  const KernelTable& table = kernels();
  const auto type = static_cast<int>(a.q.dtype);
  AttentionPlan plan = explain(a, plan_forward(a, table.attention[type], 1, false));
  const BackwardPlan backward = plan_backward(a, table.attention_backward[type], threads, true);
  plan.threads = threads;
  for (const GradUnit& unit : backward.whole) plan.costs.push_back(unit.cost);
  for (const GradCell& cell : backward.cells) plan.costs.push_back(cell.cost);
  plan.shared_units = static_cast<int64_t>(backward.shared.size());
  plan.imbalance = imbalance_of(backward, threads);
  return plan;
}

}  // namespace tegula
