// Gradients without tensor cores: every float type, any head size.
#pragma once

#include <cstddef>

#include "../../cuda/place.h"
#include "../backward.h"

namespace tegula {

// Bytes of place.workspace that a call needs.
size_t attention_backward_simt_workspace(const AttentionGradArgs& args);

void attention_backward_simt(const AttentionGradArgs& args, const Place& place);

}  // namespace tegula
