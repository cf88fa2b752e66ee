#include "forward_simt.h"

#include <algorithm>
#include <string>

#include "../../cuda/launch.h"
#include "forward_simt_params.h"
#include "rich.h"

namespace tegula {
namespace {

// How a call is cut into blocks, everything but its memory.
struct ForwardPlan {
  ForwardSimtParams params;
  int rows_a_thread;
  int64_t groups, blocks;
  int64_t partial_bytes;  // of a block

  ForwardPlan(const AttentionArgs& a, const DeviceFacts& facts) {
    const int64_t rows = a.heads / a.key_heads * a.q_len;
    const bool is_double = a.q.dtype == DType::kFloat64;
    rows_a_thread = rows <= kSimtSide ? 1 : is_double ? kManyRows<double> : kManyRows<float>;
    params.a = a;
    params.row_blocks = parts_of(rows, kSimtSide * rows_a_thread);
    params.column_slabs = std::max<int64_t>(1, parts_of(a.value_dim, kColumns));
    params.chunks = std::max<int64_t>(1, parts_of(a.k_len, kKeyChunk));
    params.q = row_steps(a.q), params.k = row_steps(a.k), params.v = row_steps(a.v);
    params.out = row_steps(a.out);
    groups = a.batch * a.key_heads * params.column_slabs * params.row_blocks;
    params.split = params.chunks > 1 && groups < 2 * facts.processors;
    blocks = params.split ? groups * params.chunks : groups;
    const int64_t number = is_double ? sizeof(double) : sizeof(float);
    partial_bytes = params.chunks > 1 ? partial_numbers(rows_a_thread) * number : 0;
  }
};

std::string kernel_name(const char* what, const AttentionArgs& a, int rows_a_thread) {
  return std::string("attention_") + what + "_simt_" + name_of(a.q.dtype) + "_r" +
         std::to_string(rows_a_thread);
}

}  // namespace

size_t attention_forward_simt_workspace(const AttentionArgs& args, const DeviceFacts& facts) {
  if (args.key_heads == 0) return 0;
  const ForwardPlan plan(args, facts);
  return static_cast<size_t>(plan.blocks * plan.partial_bytes);
}

void attention_forward_simt(const AttentionArgs& args, const Place& place) {
  if (args.key_heads == 0) return;
  ForwardPlan plan(args, place.facts);
  plan.params.partials = place.workspace;
  const std::string name = kernel_name("forward", args, plan.rows_a_thread);
  launch(place, is_rich(args) ? name + "_rich" : name, {plan.blocks, kSimtThreads, 0}, plan.params);
  if (!plan.params.split) return;
  launch(place, kernel_name("finish", args, plan.rows_a_thread), {plan.groups, kSimtThreads, 0},
         plan.params);
}

}  // namespace tegula
