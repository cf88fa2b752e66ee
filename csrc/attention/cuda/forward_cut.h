// How a forward call on tensor cores is cut into items, and items are shared among blocks.
#pragma once

#include "../../cuda/launch.h"
#include "forward_params.h"

namespace tegula {

// A device's room: blocks that fit on it at a time. `steady`: blocks stay for many items.
struct BlockRoom {
  int rows;  // of a block
  int64_t resident;
  bool steady;
};

// What is left to decide once the parameters know their items.
struct ForwardCut {
  int64_t blocks = 0;
  bool split = false;  // each chunk of keys is an item: finish_forward has to follow
};

// Sets all parameters; `a` is not empty. What these kernels keep in global memory comes from the
// workspace.
ForwardCut cut_forward(const AttentionArgs& a, const BlockRoom& room, AttentionForwardParams& p,
                       Workspace& workspace);

// Joins the chunks of split calls.
void finish_forward(const AttentionForwardParams& p, const Place& place);

// Whether kernels do that need to know all options; those that do not take the largest product for
// the largest score.
bool needs_rich(const AttentionArgs& a);

}  // namespace tegula
