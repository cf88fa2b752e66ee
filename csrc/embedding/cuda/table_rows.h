// How launchers describe tables and rows to the kernels, and how many threads they start.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../../cuda/launch.h"
#include "embedding_params.h"

namespace tegula {

inline TableRows table_rows(const View& table) {
  TableRows rows;
  rows.data = table.data;
  rows.dtype = table.dtype;
  rows.rows = table.shape[0];
  rows.stride = table.stride[0];
  rows.step = table.shape[1] == 1 ? 1 : table.stride[1];
  return rows;
}

// Elements that fill a vector.
inline int64_t vector_elements(DType dtype) { return kVectorBytes / item_size(dtype); }

inline bool is_multiple(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

// Whether each n elements of a row may be loaded at once.
inline bool is_aligned(const TableRows& table, int64_t n) {
  const int64_t item = item_size(table.dtype), bytes = std::min<int64_t>(kVectorBytes, n * item);
  return table.step == 1 && is_multiple(table.data, bytes) &&
         (table.rows <= 1 || table.stride * item % bytes == 0);
}
inline bool rows_are_aligned(const View& rows, int64_t step, int64_t n) {
  const int64_t item = item_size(rows.dtype), bytes = std::min<int64_t>(kVectorBytes, n * item);
  bool aligned = step == 1 && is_multiple(rows.data, bytes);
  for (int axis = 0; axis < rows.rank; ++axis) {
    aligned = aligned && (rows.shape[axis] == 1 || rows.stride[axis] * item % bytes == 0);
  }
  return aligned;
}

// Enough blocks for so many threads; more than a grid may have need more memory than there is.
inline LaunchShape shape_for(int64_t threads, int block) {
  return {(threads + block - 1) / block, block, 0};
}

}  // namespace tegula
