#include <algorithm>
#include <string>
#include <utility>

#include "attention_backward_cuda.h"
#include "backward_params.h"
#include "chunks.h"
#include "rich.h"

namespace tegula {
namespace {

std::string name_of_kernel(const char* what, const AttentionGradArgs& a, int dim) {
  return std::string("attention_") + what + "_mma_" + name_of(a.q.dtype) + "_d" +
         std::to_string(dim) + (is_rich(a) ? "_rich" : "_plain");
}

bool fits(const Place& place, size_t bytes) {
  return bytes <= static_cast<size_t>(place.facts.shared_bytes);
}

// Two stages before all keys of a block: without them, nothing is computed while rows are read.
void launch_dkdv(AttentionBackwardParams& params, int dim, const Place& place) {
  const AttentionGradArgs& a = params.a;
  int pairs = most_pairs(dim);
  for (const auto& [stages, fewer] : {std::pair{2, 0}, {2, 1}, {1, 0}, {1, 1}}) {
    params.stages = stages, pairs = most_pairs(dim) - fewer;
    if (fits(place, key_block_bytes(dim, pairs, stages))) break;
  }
  const int64_t keys = int64_t{pairs} * pair_tiles(dim) * 16;
  launch(place, name_of_kernel("dkdv", a, dim),
         {a.batch * a.key_heads * parts_of(a.k_len, keys), pairs * kPairThreads,
          key_block_bytes(dim, pairs, params.stages)},
         params);
}

void launch_dq(AttentionBackwardParams& params, int dim, const Place& place) {
  const AttentionGradArgs& a = params.a;
  params.stages = fits(place, row_block_bytes(dim, 2)) ? 2 : 1;
  const int64_t rows = int64_t{kRowWarps} * row_tiles(dim) * 16;
  launch(place, name_of_kernel("dq", a, dim),
         {a.batch * a.key_heads * parts_of(a.heads / a.key_heads * a.q_len, rows), kRowWarps * 32,
          row_block_bytes(dim, params.stages)},
         params);
}

void launch_dbias(const AttentionBackwardParams& with, int dim, const Place& place) {
  BiasGradientParams params;
  static_cast<AttentionBackwardParams&>(params) = with;
  const AttentionGradArgs& a = params.a;
  const View& dbias = a.dbias;
  int64_t place_of_axis = 1;
  for (int axis = 0; axis < dbias.rank - 2; ++axis) place_of_axis *= dbias.shape[axis];
  for (int axis = 0; axis < dbias.rank - 2; ++axis) {
    if (dbias.shape[axis] == 0) return;
    place_of_axis /= dbias.shape[axis];
    if (dbias.shape[axis] == 1) continue;
    BiasAxes& axes = dbias.stride[axis] == 0 ? params.shared : params.own;
    axes.add(dbias.shape[axis], place_of_axis, dbias.stride[axis]);
  }
  params.along_queries = dbias.repeats(1), params.along_keys = dbias.repeats(0);
  if (a.q_len == 0 || a.k_len == 0) return;
  const int64_t row_blocks = params.along_queries ? 1 : parts_of(a.q_len, kBiasRows);
  const int64_t key_blocks = params.along_keys ? 1 : parts_of(a.k_len, bias_tiles(dim) * kStep);
  launch(place, name_of_kernel("dbias", a, dim),
         {params.own.total * row_blocks * key_blocks, kBiasWarps * 32, bias_block_bytes(dim)},
         params);
}

}  // namespace

size_t attention_backward_workspace(const AttentionGradArgs& args) {
  Workspace workspace(nullptr);
  take_gradient_rows(args, workspace, is_rich(args));
  return workspace.bytes();
}

void attention_backward_mma(const AttentionGradArgs& a, const Place& place) {
  if (a.key_heads == 0) return;
  Workspace workspace(place.workspace);
  AttentionBackwardParams params;
  params.a = a;
  params.rows = take_gradient_rows(a, workspace, is_rich(a));
  params.q_chunks = in_chunks(a.q), params.k_chunks = in_chunks(a.k);
  params.v_chunks = in_chunks(a.v), params.grad_chunks = in_chunks(a.grad_out);
  params.dq_chunks = in_chunks(a.dq), params.dk_chunks = in_chunks(a.dk);
  params.dv_chunks = in_chunks(a.dv);
  compute_gradient_rows(a, params.rows, place);
  const int dim = head_class(std::max(a.dim, a.value_dim), is_rich(a));
  launch_dq(params, dim, place);
  launch_dkdv(params, dim, place);
  if (a.dbias) launch_dbias(params, dim, place);
}

}  // namespace tegula
