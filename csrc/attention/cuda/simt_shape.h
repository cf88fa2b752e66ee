// How kernels without tensor cores cut their work, and how they find the rows of a view.
#pragma once

#include "../../base/view.h"

namespace tegula {

// 256 threads stand in a square, see simt_tile.cuh.
inline constexpr int kSimtSide = 16;
inline constexpr int kSimtThreads = kSimtSide * kSimtSide;
inline constexpr int kRun = 4;                       // neighbours that a thread takes: a quad
inline constexpr int kRightRows = kSimtSide * kRun;  // of a tile
inline constexpr int kColumns = 2 * kRightRows;      // of sums

// Left rows of a thread, by the type of sums, where there are more than kSimtSide rows.
template <class C>
inline constexpr int kManyRows = sizeof(C) == 4 ? 4 : 2;

// Whether whole rows are quads at aligned places: decided on the host, for all of a view.
TEGULA_INLINE bool in_quads(const View& view) {
  const int64_t bytes = 4 * item_size(view.dtype) < 16 ? 4 * item_size(view.dtype) : 16;
  if (view.size(0) % 4 != 0 || view.step(0) != 1) return false;
  if (reinterpret_cast<uintptr_t>(view.data) % bytes != 0) return false;
  for (int axis = 0; axis < view.rank - 1; ++axis) {
    if (view.shape[axis] > 1 && view.stride[axis] * item_size(view.dtype) % bytes != 0) {
      return false;
    }
  }
  return true;
}

// Of a view (..., H, L, X): numbers that hosts look up once, in elements.
struct RowSteps {
  int64_t head, row, column;
  int64_t size;  // of a row
  bool quads;
};
TEGULA_INLINE RowSteps row_steps(const View& view) {
  return {view.step(2), view.step(1), view.step(0), view.size(0), in_quads(view)};
}

}  // namespace tegula
