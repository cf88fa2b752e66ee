#include "forward_plan.h"

#include <cstdlib>
#include <limits>

#include "balance.h"
#include "seen_rows.h"

namespace tegula {
namespace {

// Rows of a task: enough to reuse a key tile from the cache, few enough that q and the
// sums of all of them stay there.
constexpr int64_t kTaskBytes = int64_t{256} << 10;
constexpr int64_t kTaskBlocks = 8;
// Up to this many queries, the heads that share a key/value head are taken together.
constexpr int64_t kSharedQueries = 32;
// Tasks for every thread, so that uneven ones even out.
constexpr int64_t kTasksOfThread = 8;

// The rows of one unit, and their cost in keys.
class UnitRows {
 public:
  UnitRows(const AttentionArgs& a, int64_t batch, int64_t first_head, bool known)
      : a_(a), batch_(batch), first_head_(first_head), known_(known && (a.lo || a.cells)) {}

  // Rows [begin, end).
  double cost(int64_t begin, int64_t end) const {
    double keys = static_cast<double>((end - begin) * kRowKeys);
    if (!known_) return keys + static_cast<double>((end - begin) * a_.k_len);
    each(begin, end, [&](const SeenRows& rows, int64_t query) {
      keys += static_cast<double>(rows.count(query));
    });
    return keys;
  }
  // From the first to the last key that some of the rows sees.
  KeySpan span(int64_t begin, int64_t end) const {
    if (!known_) return {0, a_.k_len};
    KeySpan all;
    each(begin, end,
         [&](const SeenRows& rows, int64_t query) { all = hull(all, rows.span(query)); });
    return all;
  }
  // Pairs of rows [begin, end) with keys `chunk`.
  double cost_in(int64_t begin, int64_t end, KeySpan chunk) const {
    double keys = static_cast<double>((end - begin) * kRowKeys);
    each(begin, end, [&](const SeenRows& rows, int64_t query) {
      keys += static_cast<double>(rows.count(query, chunk));
    });
    return keys;
  }

 private:
  template <class Visit>
  void each(int64_t begin, int64_t end, Visit&& visit) const {
    each_row(a_, batch_, first_head_, 0, a_.q_len, begin, end, visit);
  }

  const AttentionArgs& a_;
  int64_t batch_, first_head_;
  bool known_;
};

struct Cut {
  int64_t block;      // rows
  int64_t most_rows;  // of a task
  double most_cost;   // of a task, unless it is one block
};

// Tasks of about one cost each, in whole blocks.
void cut_unit(const UnitRows& unit, int64_t rows, double cost, const Cut& cut,
              std::vector<ForwardTask>& pieces) {
  pieces.clear();
  for (int64_t begin = 0; begin < rows;) {
    const int64_t count = std::max(parts_of(rows - begin, cut.most_rows),
                                   static_cast<int64_t>(std::ceil(cost / cut.most_cost)));
    const double share = cost / static_cast<double>(std::max<int64_t>(count, 1));
    int64_t end = begin;
    double sum = 0;
    while (end < rows && end - begin < cut.most_rows && (end == begin || sum < share * 0.999)) {
      const int64_t next = std::min(rows, end + cut.block);
      sum += unit.cost(end, next);
      end = next;
    }
    pieces.push_back({0, 0, static_cast<int32_t>(begin), static_cast<int32_t>(end), 0, 0, 0, sum});
    cost -= sum;
    begin = end;
  }
}

// Chunks as tasks: those that some row sees, each with its cost.
void split_tasks(const AttentionArgs& a, ForwardPlan& plan) {
  const double width = static_cast<double>(a.dim + a.value_dim);
  for (ForwardTask& task : plan.tasks) {
    const UnitRows unit(a, task.batch, task.head, true);
    const KeySpan keys = unit.span(task.row_begin, task.row_end);
    task.chunk_begin = static_cast<int32_t>(keys.empty() ? 0 : keys.begin / kKeyChunk);
    task.chunk_end = static_cast<int32_t>(keys.empty() ? 0 : parts_of(keys.end, kKeyChunk));
    task.partial = plan.partials;
    plan.partials += task.chunk_end - task.chunk_begin;
    for (int32_t chunk = task.chunk_begin; chunk < task.chunk_end; ++chunk) {
      ForwardTask part = task;
      part.chunk_begin = chunk, part.chunk_end = chunk + 1;
      part.partial = task.partial + chunk - task.chunk_begin;
      const KeySpan seen{chunk * kKeyChunk, std::min(a.k_len, (chunk + 1) * kKeyChunk)};
      part.cost = width * unit.cost_in(task.row_begin, task.row_end, seen);
      plan.parts.push_back(part);
    }
  }
}

}  // namespace

AttentionTask ForwardPlan::task(const AttentionArgs& a, const ForwardTask& of) const {
  AttentionTask task;
  task.batch = of.batch, task.first_head = of.head;
  task.query_end = a.q_len;
  task.row_begin = of.row_begin, task.row_end = of.row_end;
  task.key_end = a.k_len;
  task.chunk_begin = of.chunk_begin, task.chunk_end = of.chunk_end;
  return task;
}

ForwardPlan plan_forward(const AttentionArgs& a, const AttentionKernels& kernels, int threads,
                         bool costs) {
  ForwardPlan plan;
  costs |= threads > 1;
  plan.heads = a.q_len <= kSharedQueries ? a.heads / a.key_heads : 1;
  const int64_t units = a.heads / plan.heads;  // of a batch entry
  const int64_t rows = a.q_len * plan.heads;   // of a unit
  const int64_t block = kernels.block_rows;
  const int64_t row_bytes = 4 * (a.dim + a.value_dim) + 64;
  const int64_t blocks = std::clamp<int64_t>(kTaskBytes / (row_bytes * block), 1, kTaskBlocks);
  const bool by_batch = costs && rows_differ(a, 0), by_head = costs && rows_differ(a, 1);
  const auto units_with_costs = [&](auto&& visit) {
    double cost = 0;
    for (int64_t batch = 0; batch < a.batch; ++batch) {
      for (int64_t unit = 0; unit < units; ++unit) {
        const UnitRows unit_rows(a, batch, unit * plan.heads, costs);
        const bool fresh = (batch == 0 && unit == 0) || by_head || (by_batch && unit == 0);
        if (fresh) cost = unit_rows.cost(0, rows);
        visit(batch, unit, unit_rows, cost, fresh);
      }
    }
  };
  Cut cut{block, blocks * block, std::numeric_limits<double>::infinity()};
  if (threads > 1) {
    double total = 0;
    units_with_costs([&](int64_t, int64_t, const UnitRows&, double cost, bool) { total += cost; });
    cut.most_cost = total / static_cast<double>(kTasksOfThread * threads);
  }

  const double width = static_cast<double>(a.dim + a.value_dim);
  const auto chunks = static_cast<int32_t>(parts_of(a.k_len, kKeyChunk));
  std::vector<ForwardTask> pieces;
  size_t batch_begin = 0;
  // Neighbours in memory follow each other: the rows of a head, or the heads of a row.
  const bool heads_together = std::abs(a.k.step(2)) < std::abs(a.k.step(1));
  units_with_costs(
      [&](int64_t batch, int64_t unit, const UnitRows& unit_rows, double cost, bool fresh) {
        if (fresh) cut_unit(unit_rows, rows, cost, cut, pieces);
        if (unit == 0) batch_begin = plan.tasks.size();
        // Last rows first: under a causal mask they are the longest.
        for (size_t i = pieces.size(); i-- > 0;) {
          ForwardTask task = pieces[i];
          task.batch = static_cast<int32_t>(batch);
          task.head = static_cast<int32_t>(unit * plan.heads);
          task.chunk_end = chunks;
          task.cost *= width;
          plan.task_rows = std::max<int64_t>(plan.task_rows, task.row_end - task.row_begin);
          plan.tasks.push_back(task);
        }
        if (heads_together && unit == units - 1) {
          std::stable_sort(
              plan.tasks.begin() + static_cast<std::ptrdiff_t>(batch_begin), plan.tasks.end(),
              [](const ForwardTask& x, const ForwardTask& y) { return x.row_begin > y.row_begin; });
        }
      });
  if (threads == 1) return plan;
  largest_first(plan.tasks);
  if (chunks > 1 && imbalance_of(plan.tasks, threads) > kEven) {
    split_tasks(a, plan);
    largest_first(plan.parts);
  }
  return plan;
}

}  // namespace tegula
