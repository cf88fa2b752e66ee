// Gradients of attention on a GPU: the arguments of backward.h, of device memory.
//
// Nothing waits for the device, and all results have the same bits in every run.
#pragma once

#include <cstddef>

#include "../../cuda/place.h"
#include "../backward.h"

namespace tegula {

// Bytes of place.workspace that a call needs.
size_t attention_backward_workspace(const AttentionGradArgs& args);

// On tensor cores: float16 and bfloat16, D and Dv up to 256.
void attention_backward_mma(const AttentionGradArgs& args, const Place& place);

}  // namespace tegula
