#include <algorithm>
#include <string>

#include "attention_forward_cuda.h"
#include "forward_cut.h"
#include "forward_wgmma.h"

namespace tegula {
namespace {

struct MmaPlan {
  bool rich;
  ForwardShape shape;
  AttentionForwardParams params;
  ForwardCut cut;

  MmaPlan(const AttentionArgs& a, const DeviceFacts& facts, Workspace& workspace)
      : rich(needs_rich(a)), shape(shape_for(a, rich)) {
    cut = cut_forward(a, {shape.rows(), resident_blocks(facts), false}, params, workspace);
  }

 private:
  static ForwardShape shape_for(const AttentionArgs& a, bool rich) {
    const int dim = head_class(std::max(a.dim, a.value_dim), rich);
    const ForwardShape few = forward_shape(dim, rich, 1);
    return a.heads / a.key_heads * a.q_len <= few.rows() ? few : forward_shape(dim, rich, 4);
  }

  // As far as shared memory and registers tell.
  int64_t resident_blocks(const DeviceFacts& facts) const {
    constexpr int kRegisters = 65536, kReserved = 1024;  // of a processor; bytes of every block
    const int by_memory = (facts.shared_bytes + kReserved) / (shape.shared_bytes() + kReserved);
    const int by_registers = kRegisters / (shape.threads() * 256);
    return int64_t{facts.processors} * std::max(1, std::min(by_memory, by_registers));
  }
};

bool is_empty(const AttentionArgs& a) { return a.batch == 0 || a.heads == 0 || a.q_len == 0; }

}  // namespace

size_t attention_forward_mma_workspace(const AttentionArgs& a, const DeviceFacts& facts) {
  Workspace workspace(nullptr);
  if (is_empty(a)) return 0;
  if (suits_wgmma(a, facts)) return attention_forward_wgmma_workspace(a, facts);
  const MmaPlan plan(a, facts, workspace);
  return workspace.bytes();
}

void attention_forward_mma(const AttentionArgs& a, const Place& place) {
  if (is_empty(a)) return;
  if (suits_wgmma(a, place.facts)) return attention_forward_wgmma(a, place);
  Workspace workspace(place.workspace);
  const MmaPlan plan(a, place.facts, workspace);
  const AttentionForwardParams& p = plan.params;
  if (p.taken != nullptr) clear(place, p.taken, sizeof *p.taken);
  const ForwardShape& shape = plan.shape;
  launch(place,
         std::string("attention_forward_mma_") + name_of(a.q.dtype) + "_d" +
             std::to_string(shape.dim) + (plan.rich ? "_rich" : "_plain") + "_w" +
             std::to_string(shape.warps),
         {plan.cut.blocks, shape.threads(), static_cast<size_t>(shape.shared_bytes())}, p);
  if (plan.cut.split) finish_forward(p, place);
}

}  // namespace tegula
