#include "backward_plan.h"

#include <map>
#include <utility>

#include "balance.h"
#include "seen_rows.h"

namespace tegula {
namespace {

// A segment has at least so many rows or keys; smaller ones are taken together.
constexpr int64_t kSegmentRows = 384;
constexpr int64_t kSegmentKeys = 1024;

struct Segment {
  int64_t query_begin, query_end, key_begin, key_end;
};

// The segments of the heads that share a key/value head.
class Segments {
 public:
  Segments(const AttentionGradArgs& a, int64_t heads) : a_(a), heads_(heads) {}

  const std::vector<Segment>& of(int64_t batch, int64_t key_head) {
    found_.clear();
    int64_t query = 0, key = 0;
    if (a_.lo && heads_ * a_.q_len > kSegmentRows) {
      read(batch, key_head);
      int64_t seen = 0;  // keys of the rows before are below this
      for (int64_t q = 0; q + 1 < a_.q_len; ++q) {
        seen = std::max(seen, ends_[static_cast<size_t>(q)]);
        const int64_t next = begins_[static_cast<size_t>(q + 1)];
        const bool large = heads_ * (q + 1 - query) >= kSegmentRows || seen - key >= kSegmentKeys;
        if (!large || seen > next || next == a_.k_len) continue;
        found_.push_back({query, q + 1, key, seen});
        query = q + 1, key = seen;
      }
    }
    found_.push_back({query, a_.q_len, key, a_.k_len});
    return found_;
  }

 private:
  // Per query, of all heads: one past its last key, and the first key of it and all behind.
  void read(int64_t batch, int64_t key_head) {
    begins_.assign(static_cast<size_t>(a_.q_len), a_.k_len);
    ends_.assign(static_cast<size_t>(a_.q_len), 0);
    const int64_t heads = rows_differ(a_, 1) ? heads_ : 1;
    for (int64_t head = 0; head < heads; ++head) {
      const SeenRows rows(a_, batch, key_head * heads_ + head);
      for (int64_t q = 0; q < a_.q_len; ++q) {
        const KeySpan keys = rows.span(q);
        if (keys.empty()) continue;
        int64_t &begin = begins_[static_cast<size_t>(q)], &end = ends_[static_cast<size_t>(q)];
        begin = std::min(begin, keys.begin), end = std::max(end, keys.end);
      }
    }
    for (size_t q = begins_.size(); q-- > 1;) {
      begins_[q - 1] = std::min(begins_[q - 1], begins_[q]);
    }
  }

  const AttentionGradArgs& a_;
  int64_t heads_;
  std::vector<int64_t> begins_, ends_;
  std::vector<Segment> found_;
};

double cost_of(const AttentionGradArgs& a, int64_t heads, const GradUnit& unit) {
  double keys = 0;
  const bool by_head = rows_differ(a, 1);
  for (int64_t head = 0; head < (by_head ? heads : 1); ++head) {
    const SeenRows rows(a, unit.batch, unit.key_head * heads + head);
    if (!a.lo && !a.cells) {
      keys = static_cast<double>((unit.query_end - unit.query_begin) * a.k_len);
    } else {
      for (int64_t q = unit.query_begin; q < unit.query_end; ++q) {
        keys += static_cast<double>(rows.count(q));
      }
    }
  }
  if (!by_head) keys *= static_cast<double>(heads);
  const int64_t lines = heads * (unit.query_end - unit.query_begin) + unit.key_end - unit.key_begin;
  return (keys + static_cast<double>(kRowKeys * lines)) *
         static_cast<double>(3 * a.dim + 2 * a.value_dim);
}

void add_cells(const AttentionGradArgs& a, int64_t row_chunk, BackwardPlan& plan) {
  const double width = static_cast<double>(3 * a.dim + 2 * a.value_dim);
  std::vector<int32_t> above;
  for (size_t number = 0; number < plan.shared.size(); ++number) {
    const GradUnit& unit = plan.shared[number];
    const int64_t rows = plan.heads * (unit.query_end - unit.query_begin);
    const int64_t first_chunk = unit.key_begin / kGradientKeys;
    above.assign(static_cast<size_t>(key_chunks_of(unit.key_begin, unit.key_end)), 0);
    for (int64_t row = 0; row * row_chunk < rows; ++row) {
      const int64_t begin = row * row_chunk, end = std::min(rows, begin + row_chunk);
      const auto each = [&](auto&& visit) {
        each_row(a, unit.batch, unit.key_head * plan.heads, unit.query_begin,
                 unit.query_end - unit.query_begin, begin, end, visit);
      };
      KeySpan seen;
      each([&](const SeenRows& of, int64_t query) { seen = hull(seen, of.span(query)); });
      const int64_t first = seen.begin / kGradientKeys;
      for (int64_t key = first; key * kGradientKeys < seen.end; ++key) {
        const KeySpan chunk{key * kGradientKeys, (key + 1) * kGradientKeys};
        double pairs = 0;
        each([&](const SeenRows& of, int64_t query) {
          pairs += static_cast<double>(of.count(query, chunk));
        });
        plan.cells.push_back({static_cast<int32_t>(number), static_cast<int32_t>(row),
                              static_cast<int32_t>(key), static_cast<int32_t>(key - first),
                              above[static_cast<size_t>(key - first_chunk)]++, pairs * width});
      }
    }
  }
  std::stable_sort(plan.cells.begin(), plan.cells.end(), [](const GradCell& x, const GradCell& y) {
    return x.row_chunk + x.key_chunk < y.row_chunk + y.key_chunk;
  });
}

}  // namespace

AttentionTask BackwardPlan::task(const GradUnit& unit) const {
  AttentionTask task;
  task.batch = unit.batch;
  task.first_head = unit.key_head * heads;
  task.query_begin = unit.query_begin, task.query_end = unit.query_end;
  task.row_end = heads * (unit.query_end - unit.query_begin);
  task.key_begin = unit.key_begin, task.key_end = unit.key_end;
  return task;
}

BackwardPlan plan_backward(const AttentionGradArgs& a, const AttentionGradKernels& kernels,
                           int threads, bool costs) {
  BackwardPlan plan;
  costs |= threads > 1;
  plan.heads = a.heads / a.key_heads;
  Segments segments(a, plan.heads);
  std::vector<GradUnit> units;  // of one batch entry and key/value head
  double total = 0;
  for (int64_t batch = 0; batch < a.batch; ++batch) {
    for (int64_t key_head = 0; key_head < a.key_heads; ++key_head) {
      const bool fresh = (batch == 0 && key_head == 0) || rows_differ(a, 1) ||
                         (rows_differ(a, 0) && key_head == 0);
      if (fresh) {
        units.clear();
        for (const Segment& segment : segments.of(batch, key_head)) {
          units.push_back(
              {static_cast<int32_t>(batch), static_cast<int32_t>(key_head),
               static_cast<int32_t>(segment.query_begin), static_cast<int32_t>(segment.query_end),
               static_cast<int32_t>(segment.key_begin), static_cast<int32_t>(segment.key_end), 0});
          if (costs) units.back().cost = cost_of(a, plan.heads, units.back());
        }
      }
      for (GradUnit& unit : units) {
        unit.batch = static_cast<int32_t>(batch), unit.key_head = static_cast<int32_t>(key_head);
        plan.whole.push_back(unit);
        total += unit.cost;
      }
    }
  }
  if (threads == 1) return plan;
  largest_first(plan.whole);
  if (imbalance_of(plan.whole, threads) <= kEven) return plan;
  // A unit stays whole while every worker has as much to do at the time it is taken: what comes
  // behind evens out. The cells of the others come last.
  std::vector<GradUnit> whole;
  for (const GradUnit& unit : plan.whole) {
    const bool one_cell = plan.heads * (unit.query_end - unit.query_begin) <= kernels.row_chunk &&
                          key_chunks_of(unit.key_begin, unit.key_end) <= 1;
    const bool stays = one_cell || unit.cost * threads <= total;
    (stays ? whole : plan.shared).push_back(unit);
    if (stays) total -= unit.cost;
  }
  plan.whole = std::move(whole);
  add_cells(a, kernels.row_chunk, plan);
  return plan;
}

double imbalance_of(const BackwardPlan& plan, int threads) {
  Workers workers(threads);
  for (const GradUnit& unit : plan.whole) workers.take(unit.cost);
  // When the last cell of a row chunk, of a key chunk, was added up.
  std::map<std::pair<int32_t, int32_t>, double> rows, keys;
  for (const GradCell& cell : plan.cells) {
    double &row = rows[{cell.unit, cell.row_chunk}], &key = keys[{cell.unit, cell.key_chunk}];
    row = key = workers.take(cell.cost, std::max(row, key));
  }
  return workers.imbalance();
}

}  // namespace tegula
