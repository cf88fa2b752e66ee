// What the kernels of positional_encoding_cuda.h are given.
#pragma once

#include "../../base/view.h"
#include "../positional_encoding.h"

namespace tegula {

struct PositionalEncodingParams {
  View positions;  // one entry a row of the output
  View out;        // its rows
  int64_t out_step = 1;
  int64_t rows = 0, dim = 0;
  const double* frequencies = nullptr;  // (half,)
  PositionLayout layout = PositionLayout::kInterleaved;
  bool pairs = false;  // a sine and its cosine are neighbours, on an aligned address
};

inline constexpr int kEncodingRows = 8;  // of the output, to one thread
inline constexpr int kEncodingThreads = 256;

}  // namespace tegula
