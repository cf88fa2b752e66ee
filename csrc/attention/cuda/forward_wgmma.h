// The forward pass on the tensor cores of sm_90a; forward_mma.cpp asks for it.
#pragma once

#include <cstddef>

#include "../../cuda/place.h"
#include "../attention.h"

namespace tegula {

// Whether these kernels take the call: no options, heads of 33 to 128. Lengths and strides play no
// part, so that they do not change bits.
bool suits_wgmma(const AttentionArgs& args, const DeviceFacts& facts);

size_t attention_forward_wgmma_workspace(const AttentionArgs& args, const DeviceFacts& facts);
void attention_forward_wgmma(const AttentionArgs& args, const Place& place);

}  // namespace tegula
