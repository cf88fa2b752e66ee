// The arguments of mask_fill from Python to native ones, wherever it runs.
#pragma once

#include "../mask/mask.h"
#include "intervals.h"

namespace tegula {

inline void check_rank(const View& view, const char* name) {
  if (view.rank != 4) throw ValueError(message(name, " must have 4 axes, got ", shape_text(view)));
}

inline MaskFillArgs mask_fill_args(Arrays& arrays, py::handle out, py::handle lo, py::handle hi,
                                   py::handle dense) {
  const View given = look_at(out, "out");
  const DType dtype = given.dtype;
  if (dtype != DType::kBool && !is_float(dtype)) {
    throw TypeError(message("out must be bool or a float type, got ", name_of(dtype)));
  }
  check_rank(given, "out");
  MaskFillArgs args;
  IntervalViews rows(arrays.input(lo, "lo"), arrays.input(hi, "hi"));
  rows.spread_over(given);
  args.lo = rows.lo, args.hi = rows.hi, args.gap_lo = rows.gap_lo, args.gap_hi = rows.gap_hi;
  if (!dense.is_none()) {
    args.dense = spread(arrays.input(dense, "dense"), "dense", DType::kBool, 4, given);
  }
  args.out = arrays.output(out, "out", dtype, {given.shape, given.shape + 4});
  return args;
}

}  // namespace tegula
