#include "attention.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "../base/arena.h"
#include "../base/parallel.h"
#include "../isa/select.h"

namespace tegula {
namespace {

// Rows of a task: enough to reuse a key tile from the cache, few enough that q and the
// sums of all of them stay there.
constexpr int64_t kTaskBytes = int64_t{256} << 10;
constexpr int64_t kTaskBlocks = 8;
// Up to this many queries, the heads that share a key/value head are taken together.
constexpr int64_t kSharedQueries = 32;

struct Plan {
  int64_t heads;  // of a unit
  int64_t units;  // batch * heads / unit heads
  int64_t rows;   // of a unit
  int64_t task_rows;
  int64_t row_tasks;  // of a unit
  int64_t chunks;     // key chunks
  bool split;         // one task a chunk
};

Plan make_plan(const AttentionArgs& a, const AttentionKernels& kernels, int threads) {
  Plan plan;
  const int64_t group = a.heads / a.key_heads;
  plan.heads = a.q_len <= kSharedQueries ? group : 1;
  plan.units = a.batch * (a.heads / plan.heads);
  plan.rows = a.q_len * plan.heads;
  const int64_t block = kernels.block_rows;
  const int64_t row_bytes = 4 * (a.dim + a.value_dim) + 64;
  int64_t blocks = std::clamp<int64_t>(kTaskBytes / (row_bytes * block), 1, kTaskBlocks);
  // A few tasks for every thread, so that uneven ones even out.
  while (blocks > 1 && plan.units * ((plan.rows + blocks * block - 1) / (blocks * block)) <
                           4 * int64_t{threads}) {
    blocks = (blocks + 1) / 2;
  }
  const int64_t tasks = (plan.rows + blocks * block - 1) / (blocks * block);
  // Equal tasks, in whole blocks.
  plan.task_rows = ((plan.rows + tasks - 1) / tasks + block - 1) / block * block;
  plan.row_tasks = (plan.rows + plan.task_rows - 1) / plan.task_rows;
  plan.chunks = (a.k_len + kKeyChunk - 1) / kKeyChunk;
  plan.split = plan.chunks > 1 && plan.units * plan.row_tasks < threads;
  return plan;
}

AttentionTask task_of(const Plan& plan, const AttentionArgs& a, int64_t index) {
  const int64_t units_of_batch = a.heads / plan.heads;
  const int64_t tasks_of_batch = units_of_batch * plan.row_tasks;
  const int64_t place = index % tasks_of_batch;
  // Neighbours in memory follow each other: the rows of a head, or the heads of a row.
  const bool heads_together = std::abs(a.k.step(2)) < std::abs(a.k.step(1));
  const int64_t unit = heads_together ? place % units_of_batch : place / plan.row_tasks;
  const int64_t part = heads_together ? place / units_of_batch : place % plan.row_tasks;
  AttentionTask task;
  task.batch = index / tasks_of_batch;
  task.first_head = unit * plan.heads;
  // Last rows first: under a causal mask they are the longest.
  task.row_begin = (plan.row_tasks - 1 - part) * plan.task_rows;
  task.row_end = std::min(plan.rows, task.row_begin + plan.task_rows);
  task.chunk_end = plan.chunks;
  return task;
}

}  // namespace

double attention_work(const AttentionArgs& a) {
  double keys = static_cast<double>(a.k_len);
  if (a.lo && a.q_len > 0 && a.batch > 0) {
    constexpr int64_t kSamples = 16;
    double seen = 0;
    for (int64_t s = 0; s < kSamples; ++s) {
      const int64_t at = s * (a.batch - 1) / (kSamples - 1) * a.lo.stride[0] +
                         s * (a.q_len - 1) / (kSamples - 1) * a.lo.stride[2];
      const int64_t at_hi = s * (a.batch - 1) / (kSamples - 1) * a.hi.stride[0] +
                            s * (a.q_len - 1) / (kSamples - 1) * a.hi.stride[2];
      seen += std::max(0, *a.hi.at<int32_t>(at_hi) - *a.lo.at<int32_t>(at));
    }
    keys = seen / kSamples;
  }
  // A key that meets few queries costs what it takes to read it.
  constexpr int64_t kFew = 8;
  const int64_t group = a.key_heads > 0 ? a.heads / a.key_heads : 1;
  const int64_t rows = std::max(kFew, group * a.q_len) * a.key_heads;
  return keys * static_cast<double>(a.batch * rows) * static_cast<double>(a.dim + a.value_dim + 8);
}

int64_t attention_bytes(const AttentionArgs& a) {
  return a.batch * (a.heads * a.q_len + a.key_heads * a.k_len) * (a.dim + a.value_dim) *
         item_size(a.q.dtype);
}

void attention_forward(const AttentionArgs& a, int threads) {
  if (a.batch * a.heads * a.q_len == 0) return;
  const AttentionKernels& kernel = kernels().attention[static_cast<int>(a.q.dtype)];
  threads = threads_for(attention_work(a), threads);
  const Plan plan = make_plan(a, kernel, threads);
  const int64_t tasks = plan.units * plan.row_tasks;
  const size_t scratch_bytes = kernel.scratch_bytes(a, plan.task_rows);

  const auto run = [&](int64_t count, auto&& body) {
    parallel_for(count, threads, [&](int64_t index) {
      Arena& arena = thread_arena();
      body(index, arena.reserve(scratch_bytes));
      arena.trim();
    });
  };
  if (!plan.split) {
    // A task is over before the hardware has learnt where the next one's rows lie; within the
    // second cache that does not matter.
    const bool far = plan.heads == 1 && attention_bytes(a) > kSecondCache;
    run(tasks, [&](int64_t index, void* scratch) {
      AttentionTask task = task_of(plan, a, index), next;
      if (far && index + threads < tasks) {
        next = task_of(plan, a, index + threads);
        task.next = &next;
      }
      kernel.forward(a, task, scratch);
    });
  } else {
    const size_t partial_bytes = kernel.partial_bytes(a, plan.task_rows);
    TakenArena partials;
    char* base = partials.reserve(partial_bytes * static_cast<size_t>(tasks * plan.chunks));
    run(tasks * plan.chunks, [&](int64_t index, void* scratch) {
      AttentionTask task = task_of(plan, a, index / plan.chunks);
      task.chunk_begin = index % plan.chunks;
      task.chunk_end = task.chunk_begin + 1;
      task.partial = base + partial_bytes * static_cast<size_t>(index);
      kernel.forward(a, task, scratch);
    });
    run(tasks, [&](int64_t index, void* scratch) {
      kernel.finish(a, task_of(plan, a, index),
                    base + partial_bytes * static_cast<size_t>(index * plan.chunks), partial_bytes,
                    plan.chunks, scratch);
    });
  }
  if (a.weights) {
    run(tasks,
        [&](int64_t index, void* scratch) { kernel.weights(a, task_of(plan, a, index), scratch); });
  }
}

}  // namespace tegula
