#include "backward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../base/arena.h"
#include "../base/parallel.h"
#include "../isa/select.h"

namespace tegula {
namespace {

int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

struct Plan {
  int64_t units;       // batch entries times key/value heads
  int64_t heads;       // of a unit
  int64_t rows;        // of a unit
  int64_t key_chunks;  // of a unit
  int64_t row_chunks;  // of a unit
  enum { kWhole, kByKeys, kByRows } split;
};

Plan make_plan(const AttentionGradArgs& a, const AttentionGradKernels& kernels, int threads) {
  Plan plan;
  plan.units = a.batch * a.key_heads;
  plan.heads = a.heads / a.key_heads;
  plan.rows = plan.heads * a.q_len;
  plan.key_chunks = parts(a.k_len, kGradientKeys);
  plan.row_chunks = parts(plan.rows, kernels.row_chunk);
  // Units are shared out whole as long as that keeps nine threads in ten at work.
  const int64_t rounds = parts(plan.units, threads);
  const bool balanced = threads <= 1 || 10 * plan.units >= 9 * rounds * threads;
  plan.split = Plan::kWhole;
  if (!balanced && std::max(plan.key_chunks, plan.row_chunks) > 1) {
    plan.split = plan.key_chunks >= std::min<int64_t>(plan.row_chunks, threads) ? Plan::kByKeys
                                                                                : Plan::kByRows;
  }
  return plan;
}

AttentionTask unit_task(const AttentionGradArgs& a, const Plan& plan, int64_t unit) {
  AttentionTask task;
  task.batch = unit / a.key_heads;
  task.first_head = unit % a.key_heads * plan.heads;
  task.row_end = plan.rows;
  task.chunk_end = plan.key_chunks;
  return task;
}

template <class Body>
void run_tasks(int64_t count, int threads, size_t scratch_bytes, Body&& body) {
  parallel_for(count, threads, [&](int64_t index) {
    Arena& arena = thread_arena();
    body(index, arena.reserve(scratch_bytes));
    arena.trim();
  });
}

// A head that is one task is over before the hardware has learnt where the next one lies.
bool has_short_heads(const AttentionGradArgs& a, const Plan& plan) {
  constexpr int64_t kShort = 256;
  const int64_t bytes = a.batch * (a.heads * a.q_len + a.key_heads * a.k_len) *
                        (a.dim + a.value_dim) * item_size(a.q.dtype);
  return plan.heads == 1 && !a.lo && a.q_len <= kShort && a.k_len <= kShort &&
         bytes > kSecondCache;
}

void run_whole(const AttentionGradArgs& a, const AttentionGradKernels& kernel, const Plan& plan,
               int threads) {
  const bool short_heads = has_short_heads(a, plan);
  run_tasks(plan.units, threads, kernel.scratch_bytes(a, plan.rows),
            [&](int64_t unit, void* scratch) {
              AttentionTask task = unit_task(a, plan, unit);
              if (short_heads && unit + threads < plan.units) {
                const AttentionTask next = unit_task(a, plan, unit + threads);
                task.next_batch = next.batch, task.next_head = next.first_head;
              }
              kernel.backward(a, task, scratch);
            });
}

// One task a key chunk. Their dq are added up in order, a few chunks at a time, so that the
// memory they take does not grow with their number.
void run_by_keys(const AttentionGradArgs& a, const AttentionGradKernels& kernel, const Plan& plan,
                 int threads) {
  const int64_t wave = std::min<int64_t>(plan.key_chunks, parts(2 * threads, plan.units));
  const size_t bytes = kernel.query_bytes(a, plan.rows);
  Arena sums;
  char* totals = sums.reserve(bytes * static_cast<size_t>(plan.units * (wave + 1)));
  char* partials = totals + bytes * static_cast<size_t>(plan.units);
  const size_t scratch_bytes = kernel.scratch_bytes(a, plan.rows);
  for (int64_t first = 0; first < plan.key_chunks; first += wave) {
    const int64_t chunks = std::min(wave, plan.key_chunks - first);
    run_tasks(plan.units * chunks, threads, scratch_bytes, [&](int64_t index, void* scratch) {
      AttentionTask task = unit_task(a, plan, index / chunks);
      task.chunk_begin = first + index % chunks;
      task.chunk_end = task.chunk_begin + 1;
      task.partial = partials + bytes * static_cast<size_t>(index);
      kernel.backward(a, task, scratch);
    });
    run_tasks(plan.units * plan.row_chunks, threads, 0, [&](int64_t index, void*) {
      const int64_t unit = index / plan.row_chunks;
      AttentionTask task = unit_task(a, plan, unit);
      task.row_begin = index % plan.row_chunks * kernel.row_chunk;
      task.row_end = std::min(plan.rows, task.row_begin + kernel.row_chunk);
      task.chunk_begin = first;
      kernel.finish_queries(a, task, partials + bytes * static_cast<size_t>(unit * chunks), bytes,
                            chunks, totals + bytes * static_cast<size_t>(unit),
                            first + chunks == plan.key_chunks);
    });
  }
}

// One task a row chunk, for few keys. Their dk and dv are added up in order.
void run_by_rows(const AttentionGradArgs& a, const AttentionGradKernels& kernel, const Plan& plan,
                 int threads) {
  const size_t bytes = kernel.key_bytes(a);
  Arena sums;
  char* partials = sums.reserve(bytes * static_cast<size_t>(plan.units * plan.row_chunks));
  run_tasks(plan.units * plan.row_chunks, threads, kernel.scratch_bytes(a, kernel.row_chunk),
            [&](int64_t index, void* scratch) {
              AttentionTask task = unit_task(a, plan, index / plan.row_chunks);
              task.row_begin = index % plan.row_chunks * kernel.row_chunk;
              task.row_end = std::min(plan.rows, task.row_begin + kernel.row_chunk);
              task.partial = partials + bytes * static_cast<size_t>(index);
              kernel.backward(a, task, scratch);
            });
  run_tasks(plan.units * plan.key_chunks, threads, 0, [&](int64_t index, void*) {
    const int64_t unit = index / plan.key_chunks;
    AttentionTask task = unit_task(a, plan, unit);
    task.chunk_begin = index % plan.key_chunks;
    kernel.finish_keys(a, task, partials + bytes * static_cast<size_t>(unit * plan.row_chunks),
                       bytes, plan.row_chunks);
  });
}

bool repeats(const View& view, int axis) { return view.shape[axis] > 1 && view.stride[axis] == 0; }

// Tasks own entries of dbias: those of one batch entry and head stand for all that share them.
void run_bias(const AttentionGradArgs& a, const AttentionGradKernels& kernel, int threads) {
  const View& dbias = a.dbias;
  const int lead = dbias.rank - 3;
  std::vector<AttentionTask> tasks;
  const int64_t row_step = repeats(dbias, lead + 1) ? a.q_len : kernel.bias_rows;
  const int64_t key_chunks = parts(a.k_len, kGradientKeys);
  const int64_t chunk_step = repeats(dbias, lead + 2) ? key_chunks : 1;
  for (int64_t batch = 0; batch < a.batch; ++batch) {
    bool first = true;
    int64_t rest = batch;
    for (int axis = lead - 1; axis >= 0; --axis) {
      first &= !repeats(dbias, axis) || rest % dbias.shape[axis] == 0;
      rest /= dbias.shape[axis];
    }
    if (!first) continue;
    for (int64_t head = 0; head < (repeats(dbias, lead) ? 1 : a.heads); ++head) {
      for (int64_t row = 0; row < a.q_len; row += row_step) {
        for (int64_t chunk = 0; chunk < key_chunks; chunk += chunk_step) {
          AttentionTask task;
          task.batch = batch, task.first_head = head;
          task.row_begin = row, task.row_end = std::min(a.q_len, row + row_step);
          task.chunk_begin = chunk, task.chunk_end = std::min(key_chunks, chunk + chunk_step);
          tasks.push_back(task);
        }
      }
    }
  }
  run_tasks(static_cast<int64_t>(tasks.size()), threads, kernel.bias_scratch_bytes(a),
            [&](int64_t index, void* scratch) {
              kernel.bias(a, tasks[static_cast<size_t>(index)], scratch);
            });
}

// A sink is one more logit of every row that has keys; its share of the weight is
// exp(sink - lse).
template <class C>
void sum_sinks(const AttentionGradArgs& a, int threads) {
  const C* delta = static_cast<const C*>(a.delta);
  parallel_for(a.heads, threads, [&](int64_t head) {
    double sum = 0;
    for (int64_t batch = 0; batch < a.batch; ++batch) {
      const int64_t lse = a.lse.lead_offset(batch, a.lse.rank - 3) + head * a.lse.step(2);
      for (int64_t query = 0; query < a.q_len; ++query) {
        const double share = delta[(batch * a.heads + head) * a.q_len + query];
        if (share == 0) continue;
        sum -= share * std::exp(a.sinks[head] - *a.lse.at<C>(lse + query * a.lse.step(1)));
      }
    }
    a.dsinks[head] = sum;
  });
}

}  // namespace

void attention_backward(const AttentionGradArgs& args, int threads) {
  AttentionGradArgs a = args;
  if (a.dsinks != nullptr) std::fill(a.dsinks, a.dsinks + a.heads, 0.0);
  if (a.batch * a.key_heads == 0) return;
  if (a.heads == 0) a.heads = a.key_heads, a.q_len = 0;  // keys without a query
  const AttentionGradKernels& kernel = kernels().attention_backward[static_cast<int>(a.q.dtype)];
  threads = threads_for(2.5 * attention_work(a), threads);
  const Plan plan = make_plan(a, kernel, threads);
  std::vector<double> deltas;  // doubles are wide enough for either type
  if (a.dsinks != nullptr) {
    deltas.resize(static_cast<size_t>(a.batch * a.heads * a.q_len));
    a.delta = deltas.data();
  }
  switch (plan.split) {
    case Plan::kWhole: run_whole(a, kernel, plan, threads); break;
    case Plan::kByKeys: run_by_keys(a, kernel, plan, threads); break;
    case Plan::kByRows: run_by_rows(a, kernel, plan, threads); break;
  }
  if (a.dsinks != nullptr) {
    a.q.dtype == DType::kFloat64 ? sum_sinks<double>(a, threads) : sum_sinks<float>(a, threads);
  }
  if (a.dbias) run_bias(a, kernel, threads);
}

}  // namespace tegula
