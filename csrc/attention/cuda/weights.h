// The softmax weights, of every float type and head size, whichever kernel ran the forward pass.
#pragma once

#include "../../cuda/place.h"
#include "../attention.h"

namespace tegula {

// Fills args.weights.
void attention_weights(const AttentionArgs& args, const Place& place);

}  // namespace tegula
