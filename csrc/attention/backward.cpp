#include "backward.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
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
  return plan.heads == 1 && a.q_len <= kShort && a.k_len <= kShort &&
         attention_bytes(a) > kSecondCache;
}

void run_whole(const AttentionGradArgs& a, const AttentionGradKernels& kernel, const Plan& plan,
               int threads) {
  const bool short_heads = has_short_heads(a, plan);
  run_tasks(plan.units, threads, kernel.unit_bytes(a, plan.rows), [&](int64_t unit, void* memory) {
    AttentionTask task = unit_task(a, plan, unit), next;
    if (short_heads && unit + threads < plan.units) {
      next = unit_task(a, plan, unit + threads);
      task.next = &next;
    }
    kernel.unit(a, task, memory);
  });
}

// One cell of a unit, and how many cells of its row chunk and of its key chunk are added up
// before it, so that sums keep their order.
struct Cell {
  int32_t unit, row_chunk, key_chunk;
  int32_t left, above;
};

// Cells of which some row sees some key, diagonal by diagonal: whoever takes them in this
// order waits for cells already taken. sights[unit * row_chunks + row_chunk].
std::vector<Cell> cells_in_order(const Plan& plan, const std::vector<GradSight>& sights) {
  std::vector<Cell> cells;
  std::vector<int32_t> above;
  for (int64_t unit = 0; unit < plan.units; ++unit) {
    above.assign(static_cast<size_t>(plan.key_chunks), 0);
    for (int64_t row = 0; row < plan.row_chunks; ++row) {
      const GradSight sight = sights[static_cast<size_t>(unit * plan.row_chunks + row)];
      if (sight.end <= sight.begin) continue;
      const int64_t first = sight.begin / kGradientKeys;
      for (int64_t key = first; key * kGradientKeys < sight.end; ++key) {
        cells.push_back({static_cast<int32_t>(unit), static_cast<int32_t>(row),
                         static_cast<int32_t>(key), static_cast<int32_t>(key - first),
                         above[static_cast<size_t>(key)]++});
      }
    }
  }
  std::stable_sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) {
    return a.row_chunk + a.key_chunk < b.row_chunk + b.key_chunk;
  });
  return cells;
}

// How many cells of each row chunk and key chunk have been added up.
class Progress {
 public:
  explicit Progress(const Plan& plan)
      : plan_(plan),
        rows_(static_cast<size_t>(plan.units * plan.row_chunks)),
        keys_(static_cast<size_t>(plan.units * plan.key_chunks)) {}

  void wait(const Cell& cell) {
    while (row(cell).load(std::memory_order_acquire) < cell.left ||
           key(cell).load(std::memory_order_acquire) < cell.above) {
      std::this_thread::yield();
    }
  }
  void finish(const Cell& cell) {
    row(cell).fetch_add(1, std::memory_order_release);
    key(cell).fetch_add(1, std::memory_order_release);
  }

 private:
  std::atomic<int32_t>& row(const Cell& cell) {
    return rows_[static_cast<size_t>(cell.unit * plan_.row_chunks + cell.row_chunk)];
  }
  std::atomic<int32_t>& key(const Cell& cell) {
    return keys_[static_cast<size_t>(cell.unit * plan_.key_chunks + cell.key_chunk)];
  }

  const Plan& plan_;
  std::vector<std::atomic<int32_t>> rows_, keys_;
};

// Many tasks a unit: its rows and keys are packed side by side, then its cells follow.
void run_shared(const AttentionGradArgs& a, const AttentionGradKernels& kernel, const Plan& plan,
                int threads) {
  const GradBytes bytes = kernel.shared_bytes(a, plan.rows);
  TakenArena memory;
  char* units = memory.reserve(bytes.unit * static_cast<size_t>(plan.units));
  const auto memory_of = [&](int64_t unit) {
    return units + bytes.unit * static_cast<size_t>(unit);
  };
  const auto step = [&](GradStep what, int64_t unit, int64_t row, int64_t key, void* scratch) {
    kernel.step(a, unit_task(a, plan, unit), what, row, key, memory_of(unit), scratch);
  };
  const int64_t parts_of_unit = plan.row_chunks + plan.key_chunks;
  const auto run_parts = [&](GradStep of_rows, GradStep of_keys) {
    run_tasks(plan.units * parts_of_unit, threads, bytes.task, [&](int64_t index, void* scratch) {
      const int64_t unit = index / parts_of_unit, part = index % parts_of_unit;
      if (part < plan.row_chunks) {
        step(of_rows, unit, part, -1, scratch);
      } else {
        step(of_keys, unit, -1, part - plan.row_chunks, scratch);
      }
    });
  };
  std::vector<GradSight> sights(static_cast<size_t>(plan.units * plan.row_chunks));
  run_tasks(plan.units, threads, bytes.task, [&](int64_t unit, void* scratch) {
    kernel.begin(a, unit_task(a, plan, unit), memory_of(unit), scratch,
                 sights.data() + unit * plan.row_chunks);
  });
  run_parts(GradStep::kPackRows, GradStep::kPackKeys);

  const std::vector<Cell> cells = cells_in_order(plan, sights);
  Progress progress(plan);
  parallel_for(static_cast<int64_t>(cells.size()), threads, [&](int64_t index) {
    const Cell& cell = cells[static_cast<size_t>(index)];
    struct Mark {  // also when memory runs out: others may be waiting
      Progress& progress;
      const Cell& cell;
      ~Mark() { progress.finish(cell); }
    } mark{progress, cell};
    void* scratch = thread_arena().reserve(bytes.task);
    step(GradStep::kCell, cell.unit, cell.row_chunk, cell.key_chunk, scratch);
    progress.wait(cell);
    step(GradStep::kFold, cell.unit, cell.row_chunk, cell.key_chunk, scratch);
  });
  run_parts(GradStep::kWriteRows, GradStep::kWriteKeys);
}

// Tasks own entries of dbias: those of one batch entry and head stand for all that share them.
void run_bias(const AttentionGradArgs& a, const AttentionGradKernels& kernel, int threads) {
  const View& dbias = a.dbias;
  const int lead = dbias.rank - 3;
  std::vector<AttentionTask> tasks;
  const int64_t row_step = dbias.repeats(1) ? a.q_len : kernel.bias_rows;
  const int64_t key_chunks = parts(a.k_len, kGradientKeys);
  const int64_t chunk_step = dbias.repeats(0) ? key_chunks : 1;
  for (int64_t batch = 0; batch < a.batch; ++batch) {
    bool first = true;
    int64_t rest = batch;
    for (int axis = lead - 1; axis >= 0; --axis) {
      first &= !dbias.repeats(dbias.rank - 1 - axis) || rest % dbias.shape[axis] == 0;
      rest /= dbias.shape[axis];
    }
    if (!first) continue;
    for (int64_t head = 0; head < (dbias.repeats(2) ? 1 : a.heads); ++head) {
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

// Rows without a key are not visited: they have grad_lse alone.
template <class C>
void begin_deltas(const AttentionGradArgs& a) {
  if (!a.grad_lse) return;
  C* delta = static_cast<C*>(a.delta);
  for (int64_t batch = 0; batch < a.batch; ++batch) {
    const int64_t from = a.grad_lse.lead_offset(batch, a.grad_lse.rank - 3);
    for (int64_t head = 0; head < a.heads; ++head) {
      for (int64_t query = 0; query < a.q_len; ++query) {
        *delta++ =
            -*a.grad_lse.at<C>(from + head * a.grad_lse.step(2) + query * a.grad_lse.step(1));
      }
    }
  }
}

// A sink is one more logit of every row; its share of the weight is exp(sink - lse).
template <class C>
void sum_sinks(const AttentionGradArgs& a, int threads) {
  const C* delta = static_cast<const C*>(a.delta);
  parallel_for(a.heads, threads, [&](int64_t head) {
    double sum = 0;
    for (int64_t batch = 0; batch < a.batch; ++batch) {
      const int64_t from = a.lse.lead_offset(batch, a.lse.rank - 3) + head * a.lse.step(2);
      for (int64_t query = 0; query < a.q_len; ++query) {
        const double share = delta[(batch * a.heads + head) * a.q_len + query];
        const double lse = *a.lse.at<C>(from + query * a.lse.step(1));
        // A row without keys and without a sink owes nothing.
        if (share == 0 || lse == -std::numeric_limits<double>::infinity()) continue;
        sum -= share * std::exp(a.sinks[head] - lse);
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
    a.q.dtype == DType::kFloat64 ? begin_deltas<double>(a) : begin_deltas<float>(a);
  }
  plan.share ? run_shared(a, kernel, plan, threads) : run_whole(a, kernel, plan, threads);
  if (a.dsinks != nullptr) {
    a.q.dtype == DType::kFloat64 ? sum_sinks<double>(a, threads) : sum_sinks<float>(a, threads);
  }
  if (a.dbias) run_bias(a, kernel, threads);
}

}  // namespace tegula
