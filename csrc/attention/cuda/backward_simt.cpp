#include "backward_simt.h"

#include <algorithm>
#include <string>

#include "backward_simt_params.h"
#include "rich.h"

namespace tegula {
namespace {

int left_rows(const AttentionGradArgs& a) {
  return kSimtSide * (a.q.dtype == DType::kFloat64 ? kManyRows<double> : kManyRows<float>);
}

int64_t slabs_of(int64_t columns) { return std::max<int64_t>(1, parts_of(columns, kColumns)); }

// How dbias is cut into blocks, everything but its memory.
BiasSimtParams plan_bias(const AttentionGradArgs& a) {
  BiasSimtParams p;
  p.a = a;
  p.owners = p.sharers = 1;
  for (int axis = 0; axis < a.dbias.rank - 2; ++axis) {
    (a.dbias.stride[axis] == 0 ? p.sharers : p.owners) *= a.dbias.shape[axis];
  }
  p.row_blocks = parts_of(a.q_len, left_rows(a)), p.key_blocks = parts_of(a.k_len, kRightRows);
  p.q = row_steps(a.q), p.k = row_steps(a.k), p.v = row_steps(a.v), p.grad = row_steps(a.grad_out);
  const bool along_rows = a.dbias.repeats(1), along_keys = a.dbias.repeats(0);
  p.entries = p.parts = 0;
  p.partials = nullptr;
  if (!along_rows && !along_keys) return p;
  p.entries = p.owners, p.parts = 1;
  along_rows ? p.parts *= p.row_blocks : p.entries *= p.row_blocks * left_rows(a);
  along_keys ? p.parts *= p.key_blocks : p.entries *= p.key_blocks * kRightRows;
  return p;
}

void differentiate_bias(BiasSimtParams p, const Place& place) {
  const std::string type = name_of(p.a.q.dtype);
  launch(place, "attention_dbias_simt_" + type,
         {p.owners * p.row_blocks * p.key_blocks, kSimtThreads, 0}, p);
  launch(place, "attention_finish_dbias_simt_" + type,
         {parts_of(p.entries, kSimtThreads), kSimtThreads, 0}, p);
}

}  // namespace

size_t attention_backward_simt_workspace(const AttentionGradArgs& args) {
  if (args.key_heads == 0) return 0;
  Workspace workspace(nullptr);
  take_gradient_rows(args, workspace);
  if (args.dbias) {
    const BiasSimtParams bias = plan_bias(args);
    workspace.take<double>(bias.entries * bias.parts);
  }
  return workspace.bytes();
}

void attention_backward_simt(const AttentionGradArgs& a, const Place& place) {
  if (a.key_heads == 0) return;
  Workspace workspace(place.workspace);
  const GradientRows rows = take_gradient_rows(a, workspace);
  compute_gradient_rows(a, rows, place);

  BackwardSimtParams p;
  p.a = a, p.rows = rows;
  p.q = row_steps(a.q), p.k = row_steps(a.k), p.v = row_steps(a.v), p.grad = row_steps(a.grad_out);
  p.dq = row_steps(a.dq), p.dk = row_steps(a.dk), p.dv = row_steps(a.dv);
  const int64_t units = a.batch * a.key_heads;
  const std::string ending =
      std::string("_simt_") + name_of(a.q.dtype) + (is_rich(a) ? "_rich" : "");
  p.blocks = parts_of(a.heads / a.key_heads * a.q_len, left_rows(a));
  p.column_slabs = slabs_of(a.dim);
  launch(place, "attention_dq" + ending, {units * p.column_slabs * p.blocks, kSimtThreads, 0}, p);
  p.blocks = parts_of(a.k_len, left_rows(a));
  p.column_slabs = slabs_of(std::max(a.dim, a.value_dim));
  launch(place, "attention_dkdv" + ending, {units * p.column_slabs * p.blocks, kSimtThreads, 0}, p);

  if (!a.dbias) return;
  BiasSimtParams bias = plan_bias(a);
  bias.rows = rows;
  bias.partials = workspace.take<double>(bias.entries * bias.parts);
  differentiate_bias(bias, place);
}

}  // namespace tegula
