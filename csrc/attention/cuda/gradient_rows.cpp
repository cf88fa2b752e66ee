#include "gradient_rows.h"

#include <string>

#include "chunks.h"

namespace tegula {

GradientRows take_gradient_rows(const AttentionGradArgs& a, Workspace& workspace, bool rests) {
  GradientRows rows;
  if (a.key_heads == 0) return rows;
  rows.unit_rows = parts_of(a.heads / a.key_heads * a.q_len, kSightRows) * kSightRows;
  const int64_t all = a.batch * a.key_heads * rows.unit_rows;
  const auto numbers = [&]() -> void* {
    if (a.q.dtype == DType::kFloat64) return workspace.take<double>(all);
    return workspace.take<float>(all);
  };
  rows.shifts = numbers(), rows.deltas = numbers();
  if (rests) rows.rests = numbers();
  rows.seen = workspace.take<SeenKeys>(all);
  rows.sights = workspace.take<SeenByAll>(all / kSightRows);
  return rows;
}

void compute_gradient_rows(const AttentionGradArgs& a, const GradientRows& rows,
                           const Place& place) {
  constexpr int kThreads = 256;
  const std::string type = name_of(a.q.dtype);
  const GradientRowsParams params{
      a, rows, item_size(a.q.dtype) == 2 && in_chunks(a.out) && in_chunks(a.grad_out)};
  launch(place, "attention_gradient_rows_" + type,
         {a.batch * a.key_heads * rows.blocks(), kThreads, 0}, params);
  if (a.dsinks == nullptr) return;
  launch(place, "attention_sink_gradients_" + type, {a.heads, kThreads, 0}, params);
}

}  // namespace tegula
