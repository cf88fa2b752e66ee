#include "backward.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <thread>
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
  bool share;          // many tasks a unit
};

Plan make_plan(const AttentionGradArgs& a, const AttentionGradKernels& kernels, int threads) {
  Plan plan;
  plan.units = a.batch * a.key_heads;
  plan.heads = a.heads / a.key_heads;
  plan.rows = plan.heads * a.q_len;
  plan.key_chunks = parts(a.k_len, kGradientKeys);
  plan.row_chunks = parts(plan.rows, kernels.row_chunk);
  // Units stay whole as long as that keeps nine threads in ten at work.
  const bool balanced = 10 * plan.units >= 9 * parts(plan.units, threads) * threads;
  plan.share = !balanced && plan.row_chunks * plan.key_chunks > 1;
  return plan;
}

AttentionTask unit_task(const AttentionGradArgs& a, const Plan& plan, int64_t unit) {
  AttentionTask task;
  task.batch = unit / a.key_heads;
  task.first_head = unit % a.key_heads * plan.heads;
  task.row_end = plan.rows;
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
  return plan.heads == 1 && !a.lo && a.q_len <= kShort && a.k_len <= kShort && bytes > kSecondCache;
}

void run_whole(const AttentionGradArgs& a, const AttentionGradKernels& kernel, const Plan& plan,
               int threads) {
  const bool short_heads = has_short_heads(a, plan);
  run_tasks(plan.units, threads, kernel.unit_bytes(a, plan.rows), [&](int64_t unit, void* memory) {
    AttentionTask task = unit_task(a, plan, unit);
    if (short_heads && unit + threads < plan.units) {
      const AttentionTask next = unit_task(a, plan, unit + threads);
      task.next_batch = next.batch, task.next_head = next.first_head;
    }
    kernel.unit(a, task, memory);
  });
}

// Which cells of a unit have been added up. That of row chunk r and key chunk k follows those
// left of it (r, k - 1) and above it (r - 1, k), so that sums keep their order.
class Progress {
 public:
  Progress(int64_t row_chunks, int64_t key_chunks)
      : rows_(static_cast<size_t>(row_chunks)), keys_(static_cast<size_t>(key_chunks)) {}

  void wait(int64_t row_chunk, int64_t key_chunk) {
    const auto& row = rows_[static_cast<size_t>(row_chunk)];
    const auto& key = keys_[static_cast<size_t>(key_chunk)];
    while (row.load(std::memory_order_acquire) < key_chunk ||
           key.load(std::memory_order_acquire) < row_chunk) {
      std::this_thread::yield();
    }
  }
  void finish(int64_t row_chunk, int64_t key_chunk) {
    rows_[static_cast<size_t>(row_chunk)].fetch_add(1, std::memory_order_release);
    keys_[static_cast<size_t>(key_chunk)].fetch_add(1, std::memory_order_release);
  }

 private:
  std::vector<std::atomic<int64_t>> rows_, keys_;  // cells added of each row and key chunk
};

struct Cell {
  int64_t row_chunk, key_chunk;
};

// Diagonal by diagonal: whoever takes cells in this order waits for cells already taken.
std::vector<Cell> cells_in_order(const Plan& plan) {
  std::vector<Cell> cells;
  cells.reserve(static_cast<size_t>(plan.row_chunks * plan.key_chunks));
  for (int64_t diagonal = 0; diagonal < plan.row_chunks + plan.key_chunks - 1; ++diagonal) {
    const int64_t first = std::max<int64_t>(0, diagonal - plan.key_chunks + 1);
    const int64_t last = std::min(diagonal, plan.row_chunks - 1);
    for (int64_t row = first; row <= last; ++row) cells.push_back({row, diagonal - row});
  }
  return cells;
}

// Many tasks a unit: its rows and keys are packed side by side, then its cells follow.
void run_shared(const AttentionGradArgs& a, const AttentionGradKernels& kernel, const Plan& plan,
                int threads) {
  const GradBytes bytes = kernel.shared_bytes(a, plan.rows);
  TakenArena memory;
  char* units = memory.reserve(bytes.unit * static_cast<size_t>(plan.units));
  const auto step = [&](GradStep what, int64_t unit, Cell cell, void* scratch) {
    kernel.step(a, unit_task(a, plan, unit), what, cell.row_chunk, cell.key_chunk,
                units + bytes.unit * static_cast<size_t>(unit), scratch);
  };
  const int64_t parts_of_unit = plan.row_chunks + plan.key_chunks;
  const auto run_parts = [&](GradStep of_rows, GradStep of_keys) {
    run_tasks(plan.units * parts_of_unit, threads, bytes.task, [&](int64_t index, void* scratch) {
      const int64_t unit = index / parts_of_unit, part = index % parts_of_unit;
      if (part < plan.row_chunks) {
        step(of_rows, unit, {part, -1}, scratch);
      } else {
        step(of_keys, unit, {-1, part - plan.row_chunks}, scratch);
      }
    });
  };
  run_tasks(plan.units, threads, bytes.task, [&](int64_t unit, void* scratch) {
    step(GradStep::kReadRows, unit, {-1, -1}, scratch);
  });
  run_parts(GradStep::kPackRows, GradStep::kPackKeys);

  const std::vector<Cell> cells = cells_in_order(plan);
  std::deque<Progress> progress;
  for (int64_t unit = 0; unit < plan.units; ++unit) {
    progress.emplace_back(plan.row_chunks, plan.key_chunks);
  }
  const int64_t count = plan.units * static_cast<int64_t>(cells.size());
  parallel_for(count, threads, [&](int64_t index) {
    const Cell cell = cells[static_cast<size_t>(index / plan.units)];
    const int64_t unit = index % plan.units;
    Progress& done = progress[static_cast<size_t>(unit)];
    struct Mark {  // also when memory runs out: others may be waiting
      Progress& done;
      Cell cell;
      ~Mark() { done.finish(cell.row_chunk, cell.key_chunk); }
    } mark{done, cell};
    void* scratch = thread_arena().reserve(bytes.task);
    step(GradStep::kCell, unit, cell, scratch);
    done.wait(cell.row_chunk, cell.key_chunk);
    step(GradStep::kFold, unit, cell, scratch);
  });
  run_parts(GradStep::kWriteRows, GradStep::kWriteKeys);
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
  plan.share ? run_shared(a, kernel, plan, threads) : run_whole(a, kernel, plan, threads);
  if (a.dsinks != nullptr) {
    a.q.dtype == DType::kFloat64 ? sum_sinks<double>(a, threads) : sum_sinks<float>(a, threads);
  }
  if (a.dbias) run_bias(a, kernel, threads);
}

}  // namespace tegula
