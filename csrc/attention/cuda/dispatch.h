// The operations of attention.h and backward.h on a GPU. Arguments as there, of device memory;
// `cells` and `norms` are not used, alibi, sinks and dsinks point to H contiguous numbers.
//
// 16-bit types with heads of up to kMostMmaDim run on tensor cores, everything else on fused
// multiply-adds ("simt"). Which kernel runs depends on types, head sizes and options, never on the
// number of queries or keys: a row's bits do not depend on them.
//
// Nothing waits for the device and nothing is allocated; `place.workspace` holds what the functions
// of workspaces say, in bytes.
#pragma once

#include "../../cuda/place.h"
#include "../attention.h"
#include "../backward.h"

namespace tegula {

size_t workspace_of_forward(const AttentionArgs& args, const DeviceFacts& facts);
void attention_forward(const AttentionArgs& args, const Place& place);

size_t workspace_of_backward(const AttentionGradArgs& args, const DeviceFacts& facts);
void attention_backward(const AttentionGradArgs& args, const Place& place);

}  // namespace tegula
