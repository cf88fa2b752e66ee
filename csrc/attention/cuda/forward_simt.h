// The forward pass without tensor cores: every float type, any head size.
#pragma once

#include "../../cuda/place.h"
#include "../attention.h"

namespace tegula {

// Bytes of place.workspace that a call needs.
size_t attention_forward_simt_workspace(const AttentionArgs& args, const DeviceFacts& facts);

void attention_forward_simt(const AttentionArgs& args, const Place& place);

}  // namespace tegula
