#include "backward.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "../base/arena.h"
#include "../base/parallel.h"
#include "../isa/select.h"
#include "../mask/mask.h"
#include "backward_plan.h"

namespace tegula {
namespace {

template <class Body>
void run_tasks(int64_t count, int threads, Body&& body) {
  parallel_for(count, threads, body, [] { thread_arena().trim(); });
}

// A head that is one task is over before the hardware has learnt where the next one lies.
bool has_short_heads(const AttentionGradArgs& a, const BackwardPlan& plan) {
  constexpr int64_t kShort = 256;
  return plan.heads == 1 && a.q_len <= kShort && a.k_len <= kShort &&
         attention_bytes(a) > kSecondCache;
}

class WholeUnits {
 public:
  WholeUnits(const AttentionGradArgs& a, const AttentionGradKernels& kernel,
             const BackwardPlan& plan, int threads)
      : a_(a), kernel_(kernel), plan_(plan) {
    if (has_short_heads(a, plan)) step_ = steps_ahead(count(), threads);
  }

  int64_t count() const { return static_cast<int64_t>(plan_.whole.size()); }

  void run(int64_t index) const {
    AttentionTask task = task_of(index), next;
    if (step_ > 0 && index + step_ < count()) {
      next = task_of(index + step_);
      task.next = &next;
    }
    kernel_.unit(a_, task, thread_arena().reserve(kernel_.unit_bytes(a_, task.row_end)));
  }

 private:
  AttentionTask task_of(int64_t index) const {
    return plan_.task(plan_.whole[static_cast<size_t>(index)]);
  }

  const AttentionGradArgs& a_;
  const AttentionGradKernels& kernel_;
  const BackwardPlan& plan_;
  int64_t step_ = 0;  // to the unit whose rows are sent for; 0: none
};

// A shared unit: its task, where its memory begins, and its parts among those of all.
struct SharedUnit {
  AttentionTask task;
  size_t memory;
  int64_t row_chunks, first_key_chunk, key_chunks;
  int64_t first_row, first_key;  // numbers of its first row chunk and key chunk
};

struct SharedUnits {
  std::vector<SharedUnit> units;
  size_t memory = 0, task_memory = 0;
  int64_t row_chunks = 0, key_chunks = 0;
  std::vector<std::pair<int32_t, int32_t>> parts;  // unit, and its row chunk or -1 - key chunk

  SharedUnits(const AttentionGradArgs& a, const AttentionGradKernels& kernel,
              const BackwardPlan& plan) {
    for (const GradUnit& of : plan.shared) {
      SharedUnit unit{plan.task(of), memory, 0, 0, 0, row_chunks, key_chunks};
      unit.row_chunks = parts_of(unit.task.row_end, kernel.row_chunk);
      unit.first_key_chunk = of.key_begin / kGradientKeys;
      unit.key_chunks = key_chunks_of(of.key_begin, of.key_end);
      const GradBytes bytes = kernel.shared_bytes(a, unit.task.row_end, unit.key_chunks);
      memory += bytes.unit;
      task_memory = bytes.task;
      const auto number = static_cast<int32_t>(units.size());
      for (int64_t row = 0; row < unit.row_chunks; ++row) {
        parts.emplace_back(number, static_cast<int32_t>(row));
      }
      for (int64_t key = 0; key < unit.key_chunks; ++key) {
        parts.emplace_back(number, static_cast<int32_t>(-1 - unit.first_key_chunk - key));
      }
      row_chunks += unit.row_chunks, key_chunks += unit.key_chunks;
      units.push_back(unit);
    }
  }
};

// How many cells of each row chunk and key chunk have been added up.
class Progress {
 public:
  explicit Progress(const SharedUnits& all)
      : units_(all.units),
        rows_(static_cast<size_t>(all.row_chunks)),
        keys_(static_cast<size_t>(all.key_chunks)) {}

  void wait(const GradCell& cell) {
    while (row(cell).load(std::memory_order_acquire) < cell.left ||
           key(cell).load(std::memory_order_acquire) < cell.above) {
      std::this_thread::yield();
    }
  }
  void finish(const GradCell& cell) {
    row(cell).fetch_add(1, std::memory_order_release);
    key(cell).fetch_add(1, std::memory_order_release);
  }

 private:
  std::atomic<int32_t>& row(const GradCell& cell) {
    const SharedUnit& unit = units_[static_cast<size_t>(cell.unit)];
    return rows_[static_cast<size_t>(unit.first_row + cell.row_chunk)];
  }
  std::atomic<int32_t>& key(const GradCell& cell) {
    const SharedUnit& unit = units_[static_cast<size_t>(cell.unit)];
    return keys_[static_cast<size_t>(unit.first_key + cell.key_chunk - unit.first_key_chunk)];
  }

  const std::vector<SharedUnit>& units_;
  std::vector<std::atomic<int32_t>> rows_, keys_;
};

// Rows and keys of the shared units are packed side by side; then come the whole units, and
// last the cells.
void run_shared(const AttentionGradArgs& a, const AttentionGradKernels& kernel,
                const BackwardPlan& plan, const WholeUnits& whole, int threads) {
  const SharedUnits shared(a, kernel, plan);
  TakenArena memory;
  char* base = memory.reserve(shared.memory);
  const auto scratch = [&] { return thread_arena().reserve(shared.task_memory); };
  const auto step = [&](GradStep what, int64_t number, int64_t row, int64_t key) {
    const SharedUnit& unit = shared.units[static_cast<size_t>(number)];
    kernel.step(a, unit.task, what, row, key, base + unit.memory, scratch());
  };
  const auto run_parts = [&](GradStep of_rows, GradStep of_keys) {
    run_tasks(static_cast<int64_t>(shared.parts.size()), threads, [&](int64_t index) {
      const auto [unit, part] = shared.parts[static_cast<size_t>(index)];
      part >= 0 ? step(of_rows, unit, part, -1) : step(of_keys, unit, -1, -1 - part);
    });
  };
  run_tasks(static_cast<int64_t>(shared.units.size()), threads, [&](int64_t index) {
    const SharedUnit& unit = shared.units[static_cast<size_t>(index)];
    kernel.begin(a, unit.task, base + unit.memory, scratch());
  });
  run_parts(GradStep::kPackRows, GradStep::kPackKeys);

  const std::vector<GradCell>& cells = plan.cells;
  Progress progress(shared);
  run_tasks(whole.count() + static_cast<int64_t>(cells.size()), threads, [&](int64_t index) {
    if (index < whole.count()) return whole.run(index);
    const GradCell& cell = cells[static_cast<size_t>(index - whole.count())];
    struct Mark {  // also when memory runs out: others may be waiting
      Progress& progress;
      const GradCell& cell;
      ~Mark() { progress.finish(cell); }
    } mark{progress, cell};
    step(GradStep::kCell, cell.unit, cell.row_chunk, cell.key_chunk);
    progress.wait(cell);
    step(GradStep::kFold, cell.unit, cell.row_chunk, cell.key_chunk);
  });
  run_parts(GradStep::kWriteRows, GradStep::kWriteKeys);
}

// dq, dk and dv.
void run_units(const AttentionGradArgs& a, const AttentionGradKernels& kernel, int threads) {
  const BackwardPlan plan = plan_backward(a, kernel, threads, false);
  const WholeUnits whole(a, kernel, plan, threads);
  if (plan.shared.empty()) {
    run_tasks(whole.count(), threads, [&](int64_t index) { whole.run(index); });
  } else {
    run_shared(a, kernel, plan, whole, threads);
  }
}

// Tasks own entries of dbias: those of one batch entry and head stand for all that share them.
void run_bias(const AttentionGradArgs& a, const AttentionGradKernels& kernel, int threads) {
  const View& dbias = a.dbias;
  const int lead = dbias.rank - 3;
  std::vector<AttentionTask> tasks;
  const int64_t row_step = dbias.repeats(1) ? a.q_len : kernel.bias_rows;
  const int64_t key_chunks = parts_of(a.k_len, kGradientKeys);
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
          task.query_end = a.q_len, task.key_end = a.k_len;
          task.row_begin = row, task.row_end = std::min(a.q_len, row + row_step);
          task.chunk_begin = chunk, task.chunk_end = std::min(key_chunks, chunk + chunk_step);
          tasks.push_back(task);
        }
      }
    }
  }
  const size_t scratch_bytes = kernel.bias_scratch_bytes(a);
  run_tasks(static_cast<int64_t>(tasks.size()), threads, [&](int64_t index) {
    kernel.bias(a, tasks[static_cast<size_t>(index)], thread_arena().reserve(scratch_bytes));
  });
}

// Units that add to the same entries of dbias, in the order of batch entries and heads.
using BiasOwner = std::vector<GradUnit>;

// One owner for each address of dbias.
std::vector<BiasOwner> bias_owners(const AttentionGradArgs& a, const BackwardPlan& plan) {
  const View& dbias = a.dbias;
  std::map<int64_t, BiasOwner> owners;
  for (const GradUnit& unit : plan.whole) {
    const int64_t head = unit.key_head * plan.heads;
    owners[dbias.lead_offset(unit.batch, dbias.rank - 3) + head * dbias.step(2)].push_back(unit);
  }
  std::vector<BiasOwner> found;
  for (auto& [offset, units] : owners) found.push_back(std::move(units));
  return found;
}

// Whether the units' slopes are what dbias is the sum of, entry by entry.
bool units_can_add_bias(const AttentionGradArgs& a) {
  const bool wide = a.q.dtype == DType::kFloat64;
  return a.dbias && a.dbias.dtype == (wide ? DType::kFloat64 : DType::kFloat32) && a.softcap == 0 &&
         !a.dbias.repeats(0) && !a.dbias.repeats(1);
}

template <class C>
void clear_bias(const AttentionGradArgs& a, const BackwardPlan& plan, const GradUnit& unit) {
  const View& dbias = a.dbias;
  const int64_t step = dbias.step(0);
  const int64_t heads = dbias.repeats(2) ? 1 : plan.heads;
  for (int64_t head = unit.key_head * plan.heads, end = head + heads; head < end; ++head) {
    for (int64_t query = 0; query < a.q_len; ++query) {
      C* row = dbias.at<C>(dbias.lead_offset(unit.batch, dbias.rank - 3) + head * dbias.step(2) +
                           query * dbias.step(1));
      for (int64_t key = 0; key < a.k_len; ++key) row[key * step] = 0;
    }
  }
}

// Everything, with a task for each owner.
void run_owners(AttentionGradArgs a, const AttentionGradKernels& kernel, const BackwardPlan& plan,
                const std::vector<BiasOwner>& owners, int threads) {
  a.units_add_bias = true;
  run_tasks(static_cast<int64_t>(owners.size()), threads, [&](int64_t index) {
    const BiasOwner& units = owners[static_cast<size_t>(index)];
    a.q.dtype == DType::kFloat64 ? clear_bias<double>(a, plan, units.front())
                                 : clear_bias<float>(a, plan, units.front());
    for (const GradUnit& unit : units) {
      const AttentionTask task = plan.task(unit);
      kernel.unit(a, task, thread_arena().reserve(kernel.unit_bytes(a, task.row_end)));
    }
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
  TakenArena cells;
  if (a.dense && a.heads * a.q_len > 0) a.cells = mask_cells(a.dense, cells, threads);
  if (a.dsinks != nullptr) std::fill(a.dsinks, a.dsinks + a.heads, 0.0);
  if (a.batch * a.key_heads == 0) return;
  if (a.heads == 0) a.heads = a.key_heads, a.q_len = 0;  // keys without a query
  const AttentionGradKernels& kernel = kernels().attention_backward[static_cast<int>(a.q.dtype)];
  threads = threads_for(2.5 * attention_work(a), threads);
  std::vector<double> deltas;  // doubles are wide enough for either type
  if (a.dsinks != nullptr) {
    deltas.resize(static_cast<size_t>(a.batch * a.heads * a.q_len));
    a.delta = deltas.data();
    a.q.dtype == DType::kFloat64 ? begin_deltas<double>(a) : begin_deltas<float>(a);
  }
  std::vector<BiasOwner> owners;
  if (units_can_add_bias(a)) {
    const BackwardPlan plan = plan_backward(a, kernel, 1, false);
    owners = bias_owners(a, plan);
    // Few owners would leave threads without work.
    if (static_cast<int64_t>(owners.size()) < threads) owners.clear();
    if (!owners.empty()) run_owners(a, kernel, plan, owners, threads);
  }
  if (owners.empty()) {
    run_units(a, kernel, threads);
    if (a.dbias) run_bias(a, kernel, threads);
  }
  if (a.dsinks != nullptr) {
    a.q.dtype == DType::kFloat64 ? sum_sinks<double>(a, threads) : sum_sinks<float>(a, threads);
  }
}

}  // namespace tegula
