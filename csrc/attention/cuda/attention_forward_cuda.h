// Attention on a GPU: the arguments of attention.h, of device memory.
//
// Nothing waits for the device, and results have the same bits in every run.
#pragma once

#include <cstddef>

#include "../../cuda/place.h"
#include "../attention.h"

namespace tegula {

// Bytes of place.workspace that a call needs on a device.
size_t attention_forward_mma_workspace(const AttentionArgs& args, const DeviceFacts& facts);

// On tensor cores: float16 and bfloat16, D and Dv up to 256. out, and lse where it is wanted.
void attention_forward_mma(const AttentionArgs& args, const Place& place);

}  // namespace tegula
