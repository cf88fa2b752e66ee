#include "attention.h"

#include <algorithm>

#include "../base/arena.h"
#include "../base/parallel.h"
#include "../isa/select.h"
#include "../mask/mask.h"
#include "../mask/row_keys.h"
#include "forward_plan.h"

namespace tegula {

double attention_work(const AttentionArgs& a) {
  double keys = static_cast<double>(a.k_len);
  if (a.lo && a.q_len > 0 && a.batch > 0) {
    constexpr int64_t kSamples = 16;
    double seen = 0;
    for (int64_t s = 0; s < kSamples; ++s) {
      const auto bound = [&](const View& view) -> int64_t {
        if (!view) return 0;
        return *view.at<int32_t>(s * (a.batch - 1) / (kSamples - 1) * view.stride[0] +
                                 s * (a.q_len - 1) / (kSamples - 1) * view.stride[2]);
      };
      seen += static_cast<double>(
          row_keys(bound(a.lo), bound(a.hi), bound(a.gap_lo), bound(a.gap_hi), a.k_len).count());
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

void attention_forward(const AttentionArgs& args, int threads) {
  if (args.batch * args.heads * args.q_len == 0) return;
  AttentionArgs a = args;
  TakenArena cells;
  if (a.dense) a.cells = mask_cells(a.dense, cells, threads);
  const AttentionKernels& kernel = kernels().attention[static_cast<int>(a.q.dtype)];
  threads = threads_for(attention_work(a), threads);
  const ForwardPlan plan = plan_forward(a, kernel, threads, false);
  const auto tasks = static_cast<int64_t>(plan.tasks.size());
  const size_t scratch_bytes = kernel.scratch_bytes(a, plan.task_rows);
  const auto task_of = [&](int64_t index) {
    return plan.task(a, plan.tasks[static_cast<size_t>(index)]);
  };
  const auto run = [&](int64_t count, auto&& body) {
    parallel_for(
        count, threads, [&](int64_t index) { body(index, thread_arena().reserve(scratch_bytes)); },
        [] { thread_arena().trim(); });
  };
  if (plan.parts.empty()) {
    // A task is over before the hardware has learnt where the next one's rows lie; within the
    // second cache that does not matter.
    const bool far = plan.heads == 1 && attention_bytes(a) > kSecondCache;
    const int64_t step = steps_ahead(tasks, threads);
    run(tasks, [&](int64_t index, void* scratch) {
      AttentionTask task = task_of(index), next;
      if (far && index + step < tasks) {
        next = task_of(index + step);
        task.next = &next;
      }
      kernel.forward(a, task, scratch);
    });
  } else {
    const size_t partial_bytes = kernel.partial_bytes(a, plan.task_rows);
    TakenArena partials;
    char* base = partials.reserve(partial_bytes * static_cast<size_t>(plan.partials));
    run(static_cast<int64_t>(plan.parts.size()), [&](int64_t index, void* scratch) {
      const ForwardTask& part = plan.parts[static_cast<size_t>(index)];
      AttentionTask task = plan.task(a, part);
      task.partial = base + partial_bytes * static_cast<size_t>(part.partial);
      kernel.forward(a, task, scratch);
    });
    run(tasks, [&](int64_t index, void* scratch) {
      const ForwardTask& task = plan.tasks[static_cast<size_t>(index)];
      kernel.finish(a, plan.task(a, task), base + partial_bytes * static_cast<size_t>(task.partial),
                    partial_bytes, task.chunk_end - task.chunk_begin, scratch);
    });
  }
  if (a.weights) {
    run(tasks, [&](int64_t index, void* scratch) { kernel.weights(a, task_of(index), scratch); });
  }
}

}  // namespace tegula
