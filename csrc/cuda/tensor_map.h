// How the copy engine of sm_90 and later sees an array: it copies boxes of it to shared memory.
#pragma once

#include <cstdint>

#include "../base/dtype.h"

namespace tegula {

// A CUtensorMap, as kernels take it: part of their parameters.
struct alignas(128) TensorMap {
  unsigned char bytes[128];
};

inline constexpr int kTensorRank = 4;

// An array of 16-bit numbers and a box of it, axes from the last one (of step 1) to the first. Rows
// of a box are 128 bytes, and lie in shared memory one after the other with 16-byte chunk c of row
// r at c ^ r % 8. What lies outside the array is zeros.
struct TensorBoxes {
  const void* data;  // a multiple of 16
  DType dtype;
  int64_t size[kTensorRank];
  int64_t step[kTensorRank];  // in elements, multiples of 8 and positive, but for the first
  int box[kTensorRank];       // at most 256 each
};

}  // namespace tegula
