#include "dispatch.h"

#include <algorithm>

#include "../../cuda/launch.h"
#include "attention_backward_cuda.h"
#include "attention_forward_cuda.h"
#include "backward_simt.h"
#include "forward_simt.h"
#include "weights.h"

namespace tegula {
namespace {

constexpr int64_t kMostMmaDim = 256;

bool on_tensor_cores(const AttentionArgs& args) {
  const DType type = args.q.dtype;
  return (type == DType::kFloat16 || type == DType::kBFloat16) &&
         std::max(args.dim, args.value_dim) <= kMostMmaDim;
}

// Weights are made of the log-sum-exp. Where the caller does not want it, it lies in the workspace,
// before what the kernels need.
struct ForwardPlan {
  AttentionArgs args;
  size_t lse_bytes = 0;

  ForwardPlan(const AttentionArgs& given, void* memory) : args(given) {
    if (!args.weights || args.lse) return;
    View& lse = args.lse;
    lse = args.out;
    lse.dtype = args.q.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    lse.shape[lse.rank - 1] = 1;
    int64_t step = 1;
    for (int axis = lse.rank - 1; axis >= 0; --axis) {
      lse.stride[axis] = step;
      step *= lse.shape[axis];
    }
    Workspace workspace(memory);
    lse.data = workspace.take<char>(lse.count() * item_size(lse.dtype));
    lse_bytes = workspace.bytes();
  }
};

}  // namespace

size_t workspace_of_forward(const AttentionArgs& args, const DeviceFacts& facts) {
  const ForwardPlan plan(args, nullptr);
  return plan.lse_bytes + (on_tensor_cores(args)
                               ? attention_forward_mma_workspace(plan.args, facts)
                               : attention_forward_simt_workspace(plan.args, facts));
}

void attention_forward(const AttentionArgs& args, const Place& place) {
  const ForwardPlan plan(args, place.workspace);
  Place rest = place;
  rest.workspace = static_cast<char*>(place.workspace) + plan.lse_bytes;
  if (on_tensor_cores(args)) {
    attention_forward_mma(plan.args, rest);
  } else {
    attention_forward_simt(plan.args, rest);
  }
  if (args.weights) attention_weights(plan.args, place);
}

size_t workspace_of_backward(const AttentionGradArgs& args, const DeviceFacts&) {
  return on_tensor_cores(args) ? attention_backward_workspace(args)
                               : attention_backward_simt_workspace(args);
}

void attention_backward(const AttentionGradArgs& args, const Place& place) {
  if (on_tensor_cores(args)) {
    attention_backward_mma(args, place);
  } else {
    attention_backward_simt(args, place);
  }
}

}  // namespace tegula
