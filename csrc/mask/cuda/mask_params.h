// What the kernels of mask_cuda.h are given.
#pragma once

#include "../mask.h"

namespace tegula {

struct MaskFillParams {
  MaskFillArgs args;
  uint64_t hidden = 0, visible = 0;  // the bits of an element
  int64_t pieces = 1;                // of a row, one to each warp
};

struct MaskScanParams {
  MaskScanArgs args;
};

inline constexpr int kMaskThreads = 256;
inline constexpr int kScanBlocks = 4;  // of a multiprocessor
inline constexpr int kMaskWarps = kMaskThreads / 32;
inline constexpr int kFillStores = 8;  // of a lane
inline constexpr int kKeysOfLane = 16;  // read together

}  // namespace tegula
