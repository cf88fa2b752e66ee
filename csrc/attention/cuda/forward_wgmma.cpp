#include "forward_wgmma.h"

#include <algorithm>
#include <string>

#include "chunks.h"
#include "forward_cut.h"
#include "forward_wgmma_params.h"

namespace tegula {
namespace {

#ifdef TEGULA_WITHOUT_SM_90A
constexpr bool kCompiled = false;
#else
constexpr bool kCompiled = true;
#endif

constexpr int64_t kLeastDim = 33, kMostDim = 128;
constexpr int64_t kMostStep = int64_t{1} << 38;  // elements of 2 bytes

// The step of all leading axes of a view (..., H, L, X) taken as one; -1 where they do not make
// one.
int64_t batch_step(const View& view) {
  int64_t step = 0, next = 0;  // of the axes so far, and what the axis before them should have
  bool any = false;
  for (int axis = view.rank - 4; axis >= 0; --axis) {
    if (view.shape[axis] == 1) continue;
    if (any && view.stride[axis] != next) return -1;
    if (!any) step = view.stride[axis], any = true;
    next = view.stride[axis] * view.shape[axis];
  }
  return step;
}

// Axes from the last to the first; those that repeat, and those of one entry, are left out.
struct BoxAxes {
  int64_t size[kTensorRank], step[kTensorRank];
  bool moves[kTensorRank];

  explicit BoxAxes(const View& view) {
    const int64_t steps[kTensorRank] = {view.step(0), view.step(1), view.step(2), batch_step(view)};
    int64_t sizes[kTensorRank] = {view.size(0), view.size(1), view.size(2), 1};
    for (int axis = 0; axis < view.rank - 3; ++axis) sizes[3] *= view.shape[axis];
    for (int i = 0; i < kTensorRank; ++i) {
      moves[i] = sizes[i] > 1 && steps[i] != 0;
      size[i] = moves[i] ? sizes[i] : 1, step[i] = moves[i] ? steps[i] : kChunk;
    }
    size[0] = sizes[0];
    repeats = sizes[1] > 1 && steps[1] == 0;
  }
  bool fit() const {
    for (int i = 1; i < kTensorRank; ++i) {
      if (step[i] <= 0 || step[i] > kMostStep || size[i] >= int64_t{1} << 32) return false;
    }
    return !repeats;
  }

 private:
  bool repeats;  // all keys are one
};

bool has_boxes(const View& view) {
  return view.size(0) > 0 && view.size(1) > 0 && in_chunks(view) && BoxAxes(view).fit();
}

WgmmaTiles tiles_of(const View& view, const Place& place) {
  const BoxAxes axes(view);
  TensorBoxes boxes{view.data, view.dtype, {}, {}, {64, WgmmaShape::kKeys, 1, 1}};
  std::copy_n(axes.size, kTensorRank, boxes.size);
  std::copy_n(axes.step, kTensorRank, boxes.step);
  return {encode_tensor_map(place, boxes), axes.moves[2], axes.moves[3]};
}

WgmmaShape shape_for(const AttentionArgs& a) {
  return wgmma_shape(std::max(a.dim, a.value_dim) <= 64 ? 64 : 128,
                     a.heads / a.key_heads * a.q_len <= 64 ? 1 : 2);
}

ForwardCut cut(const AttentionArgs& a, const DeviceFacts& facts, AttentionForwardParams& p,
               Workspace& workspace) {
  const WgmmaShape shape = shape_for(a);
  return cut_forward(a, {shape.rows(), facts.processors, true}, p, workspace);
}

}  // namespace

bool suits_wgmma(const AttentionArgs& a, const DeviceFacts& facts) {
  const int64_t dim = std::max(a.dim, a.value_dim);
  return kCompiled && facts.major == 9 && !needs_rich(a) && dim >= kLeastDim && dim <= kMostDim;
}

size_t attention_forward_wgmma_workspace(const AttentionArgs& a, const DeviceFacts& facts) {
  Workspace workspace(nullptr);
  AttentionForwardParams p;
  cut(a, facts, p, workspace);
  return workspace.bytes();
}

void attention_forward_wgmma(const AttentionArgs& a, const Place& place) {
  Workspace workspace(place.workspace);
  AttentionWgmmaParams params;
  const ForwardCut found = cut(a, place.facts, params.forward, workspace);
  params.k = params.v = {};
  params.boxed = has_boxes(a.k) && has_boxes(a.v);
  if (params.boxed) params.k = tiles_of(a.k, place), params.v = tiles_of(a.v, place);
  const auto* taken = params.forward.taken;
  if (taken != nullptr) clear(place, params.forward.taken, sizeof *taken);
  const WgmmaShape shape = shape_for(a);
  launch(place,
         std::string("attention_forward_wgmma_") + name_of(a.q.dtype) + "_d" +
             std::to_string(shape.dim) + "_g" + std::to_string(shape.groups),
         {found.blocks, shape.threads(), static_cast<size_t>(shape.shared_bytes())}, params);
  if (found.split) finish_forward(params.forward, place);
}

}  // namespace tegula
