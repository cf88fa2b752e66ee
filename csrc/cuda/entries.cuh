// Entries of a strided array, by their number in C order and whatever their type: base/entries.h
// for kernels.
#pragma once

#include "device.cuh"

namespace tegula {

// Where entry `index` lies, in elements.
TEGULA_DEVICE int64_t entry_offset(const View& view, int64_t index) {
  if (view.rank == 0) return 0;
  int64_t offset = 0;
#pragma unroll 1  // nearly always one axis; divisions are long
  for (int axis = view.rank - 1; axis > 0; --axis) {
    const int64_t rest = index / view.shape[axis];
    offset += (index - rest * view.shape[axis]) * view.stride[axis];
    index = rest;
  }
  return offset + index * view.stride[0];
}

TEGULA_DEVICE int64_t integer_entry(const View& view, int64_t index) {
  return load_integer(view, entry_offset(view, index));
}

// An integer or float as float64.
TEGULA_DEVICE double double_entry(const View& view, int64_t index) {
  const int64_t offset = entry_offset(view, index);
  if (is_float(view.dtype)) return load_float<double>(view, offset);
  if (view.dtype == DType::kUInt64) return static_cast<double>(*view.at<uint64_t>(offset));
  return static_cast<double>(load_integer(view, offset));
}

}  // namespace tegula
