#include "dispatch.h"

#include <algorithm>

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

}  // namespace

size_t workspace_of_forward(const AttentionArgs& args, const DeviceFacts& facts) {
  return on_tensor_cores(args) ? attention_forward_mma_workspace(args, facts)
                               : attention_forward_simt_workspace(args, facts);
}

void attention_forward(const AttentionArgs& args, const Place& place) {
  if (on_tensor_cores(args)) {
    attention_forward_mma(args, place);
  } else {
    attention_forward_simt(args, place);
  }
  if (args.weights) attention_weights(args, place);
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
