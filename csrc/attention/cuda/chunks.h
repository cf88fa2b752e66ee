// Rows of 16-bit numbers that can be copied 16 bytes at a time.
#pragma once

#include "../../base/view.h"

namespace tegula {

inline constexpr int kChunk = 8;  // elements of 16 bytes

// Whether rows can be copied 16 bytes at a time: decided on the host, for all tiles of a view.
TEGULA_INLINE bool in_chunks(const View& view) {
  if (view.size(0) % kChunk != 0 || view.step(0) != 1) return false;
  if (reinterpret_cast<uintptr_t>(view.data) % 16 != 0) return false;
  for (int axis = 0; axis < view.rank - 1; ++axis) {
    if (view.shape[axis] > 1 && view.stride[axis] % kChunk != 0) return false;
  }
  return true;
}

}  // namespace tegula
