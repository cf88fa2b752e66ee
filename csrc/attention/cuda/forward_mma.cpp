#include <algorithm>
#include <cmath>
#include <string>

#include "../../cuda/launch.h"
#include "attention_forward_cuda.h"
#include "chunks.h"
#include "forward_params.h"
#include "rich.h"

namespace tegula {
namespace {

// How a call is cut into items, and items into blocks of threads.
struct ForwardPlan {
  ForwardShape shape;
  bool rich = false, split = false;
  int64_t units = 0, unit_rows = 0;
  int64_t blocks = 0;
  AttentionForwardParams params;
};

// Kernels that are not rich take the largest product for the largest score, and multiply -inf by
// the scale, in units of log 2.
bool needs_rich(const AttentionArgs& a) {
  const bool usual =
      static_cast<float>(a.scale) > 0 && std::isfinite(static_cast<float>(2 * a.scale));
  return is_rich(a) || !usual;
}

// Blocks that fit on the device at a time, as far as shared memory and registers tell.
int64_t resident_blocks(const ForwardShape& shape, const DeviceFacts& facts) {
  constexpr int kRegisters = 65536, kReserved = 1024;  // of a processor, and bytes of every block
  const int by_memory = (facts.shared_bytes + kReserved) / (shape.shared_bytes() + kReserved);
  const int by_registers = kRegisters / (shape.threads() * 256);
  return int64_t{facts.processors} * std::max(1, std::min(by_memory, by_registers));
}

// Hands out the workspace as well.
ForwardPlan plan_forward(const AttentionArgs& a, const DeviceFacts& facts, Workspace& workspace) {
  ForwardPlan plan;
  plan.rich = needs_rich(a);
  plan.units = a.batch * a.key_heads;
  if (plan.units == 0) return plan;
  plan.unit_rows = a.heads / a.key_heads * a.q_len;
  plan.shape = forward_shape(forward_dim(std::max(a.dim, a.value_dim), plan.rich), plan.rich,
                             plan.unit_rows <= forward_shape(32, true, 1).rows() ? 1 : 4);

  AttentionForwardParams& p = plan.params;
  p.a = a;
  p.q_chunks = in_chunks(a.q), p.k_chunks = in_chunks(a.k);
  p.v_chunks = in_chunks(a.v), p.out_chunks = in_chunks(a.out);
  p.width = static_cast<int>(parts_of(a.value_dim, 8) * 8);
  p.row_blocks = parts_of(plan.unit_rows, plan.shape.rows());
  p.items = plan.units * p.row_blocks;
  plan.blocks = p.items;
  const int64_t chunks = parts_of(a.k_len, kKeyChunk);
  if (chunks <= 1) return plan;

  // Where not even half of the device has something to do, each chunk is an item.
  const int64_t resident = resident_blocks(plan.shape, facts);
  plan.split = 2 * p.items <= resident;
  if (plan.split) {
    p.chunks = chunks;
    plan.blocks = p.items *= chunks;
  } else {
    plan.blocks = std::min(p.items, resident);
  }
  const int64_t places =
      plan.split ? plan.units * plan.unit_rows * chunks : plan.blocks * plan.shape.rows();
  p.sums = workspace.take<float>(places * p.width);
  p.softmaxes = workspace.take<float>(places * 2);
  // Under a mask, some items take longer than others.
  if (plan.blocks < p.items && a.lo) p.taken = workspace.take<unsigned long long>(1);
  return plan;
}

}  // namespace

size_t attention_forward_mma_workspace(const AttentionArgs& a, const DeviceFacts& facts) {
  Workspace workspace(nullptr);
  plan_forward(a, facts, workspace);
  return workspace.bytes();
}

void attention_forward_mma(const AttentionArgs& a, const Place& place) {
  Workspace workspace(place.workspace);
  const ForwardPlan plan = plan_forward(a, place.facts, workspace);
  const AttentionForwardParams& p = plan.params;
  if (p.items == 0) return;
  if (p.taken != nullptr) clear(place, p.taken, sizeof *p.taken);
  const std::string type = name_of(a.q.dtype);
  launch(place,
         "attention_forward_mma_" + type + "_d" + std::to_string(plan.shape.dim) +
             (plan.rich ? "_rich" : "_plain") + "_w" + std::to_string(plan.shape.warps),
         {plan.blocks, plan.shape.threads(), static_cast<size_t>(plan.shape.shared_bytes())}, p);
  if (!plan.split) return;
  launch(place, "attention_finish_" + type,
         {parts_of(plan.units * plan.unit_rows, kFinishThreads / 32), kFinishThreads, 0}, p);
}

}  // namespace tegula
