// One entry per operation: what an instruction set provides.
#pragma once

#include "../attention/attention.h"
#include "../attention/backward.h"
#include "../embedding/embedding.h"
#include "../embedding/embedding_backward_plan.h"
#include "../mask/mask.h"
#include "../positional_encoding/positional_encoding.h"

namespace tegula {

struct KernelTable {
  const char* name;
  // By float type: float64, float32, float16, bfloat16.
  AttentionKernels attention[4];
  AttentionGradKernels attention_backward[4];
  MaskKernels mask;
  PositionalEncodingKernels positional_encoding[4];
  EmbeddingKernels embedding[4];
  EmbeddingBackwardKernels embedding_backward[4];
};

}  // namespace tegula
