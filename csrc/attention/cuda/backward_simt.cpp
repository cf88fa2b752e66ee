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

// How dbias is cut into blocks, everything but its memory. Tiles that are few are shared by groups
// of batch entries and heads, however many processors there are: the same bits everywhere.
BiasSimtParams plan_bias(const AttentionGradArgs& a) {
  constexpr int64_t kEnoughBlocks = 512, kFewestSharers = 4;
  BiasSimtParams p;
  p.a = a;
  p.owners = p.sharers = 1;
  for (int axis = 0; axis < a.dbias.rank - 2; ++axis) {
    (a.dbias.stride[axis] == 0 ? p.sharers : p.owners) *= a.dbias.shape[axis];
  }
  p.row_blocks = parts_of(a.q_len, left_rows(a)), p.key_blocks = parts_of(a.k_len, kRightRows);
  const int64_t tiles = std::max<int64_t>(1, p.owners * p.row_blocks * p.key_blocks);
  p.group_sharers = std::max(kFewestSharers, parts_of(p.sharers * tiles, kEnoughBlocks));
  p.groups = parts_of(p.sharers, p.group_sharers);
  p.q = row_steps(a.q), p.k = row_steps(a.k), p.v = row_steps(a.v), p.grad = row_steps(a.grad_out);

  const bool along_rows = a.dbias.repeats(1), along_keys = a.dbias.repeats(0);
  p.rows_of_owner = along_rows ? 1 : p.row_blocks * left_rows(a);
  p.keys_of_owner = along_keys ? 1 : p.key_blocks * kRightRows;
  p.parts = p.groups * (along_rows ? p.row_blocks : 1) * (along_keys ? p.key_blocks : 1);
  return p;
}

// Null where no two blocks share an entry.
double* take_partials(const BiasSimtParams& p, Workspace& workspace) {
  if (p.groups == 1 && !p.a.dbias.repeats(1) && !p.a.dbias.repeats(0)) return nullptr;
  return workspace.take<double>(p.owners * p.rows_of_owner * p.keys_of_owner * p.parts);
}

void differentiate_bias(const BiasSimtParams& p, const Place& place) {
  const std::string type = name_of(p.a.q.dtype);
  launch(place, "attention_dbias_simt_" + type,
         {p.owners * p.groups * p.row_blocks * p.key_blocks, kSimtThreads, 0}, p);
  if (p.partials == nullptr) return;
  launch(place, "attention_finish_dbias_simt_" + type,
         {parts_of(p.owners * p.rows_of_owner * p.keys_of_owner, kSimtThreads), kSimtThreads, 0},
         p);
}

}  // namespace

size_t attention_backward_simt_workspace(const AttentionGradArgs& args) {
  if (args.key_heads == 0) return 0;
  Workspace workspace(nullptr);
  take_gradient_rows(args, workspace, true);
  if (args.dbias) take_partials(plan_bias(args), workspace);
  return workspace.bytes();
}

void attention_backward_simt(const AttentionGradArgs& a, const Place& place) {
  if (a.key_heads == 0) return;
  Workspace workspace(place.workspace);
  const GradientRows rows = take_gradient_rows(a, workspace, true);
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

  if (!a.dbias || a.batch == 0) return;
  BiasSimtParams bias = plan_bias(a);
  bias.rows = rows;
  bias.partials = take_partials(bias, workspace);
  differentiate_bias(bias, place);
}

}  // namespace tegula
