// The intervals of a mask on their way from Python.
#pragma once

#include "arrays.h"

namespace tegula {

// lo and hi, (B, H, Lq); or (2, B, H, Lq), where each row has a second run behind its first.
// Then lo[0] to hi[1] is what holds both, and hi[0] to lo[1] the gap.
struct IntervalViews {
  View lo, hi, gap_lo, gap_hi;

  // Outputs of exactly the second form, or inputs.
  IntervalViews(const View& lows, const View& highs) {
    if (lows.rank != highs.rank) {
      throw ValueError(message("lo has shape ", shape_text(lows), " but hi has shape ",
                               shape_text(highs), ": the number of axes differs"));
    }
    if (lows.rank != 4) {
      lo = lows, hi = highs;
      return;
    }
    lo = run(lows, "lo", 0), hi = run(highs, "hi", 1);
    gap_lo = run(highs, "hi", 0), gap_hi = run(lows, "lo", 1);
  }

  // Axes of size 1 repeat, so that all have the first three sizes of `pairs`, (B, H, Lq, Lk).
  void spread_over(const View& pairs) {
    lo = spread(lo, "lo", DType::kInt32, 3, pairs);
    hi = spread(hi, "hi", DType::kInt32, 3, pairs);
    if (!gap_lo) return;
    gap_lo = spread(gap_lo, "hi", DType::kInt32, 3, pairs);
    gap_hi = spread(gap_hi, "lo", DType::kInt32, 3, pairs);
  }

 private:
  static View run(const View& runs, const char* name, int64_t index) {
    if (runs.shape[0] != 2) {
      throw ValueError(
          message(name, " has shape ", shape_text(runs), "; its first axis must be 2"));
    }
    View one = runs;
    --one.rank;
    for (int axis = 0; axis < 3; ++axis) {
      one.shape[axis] = runs.shape[axis + 1], one.stride[axis] = runs.stride[axis + 1];
    }
    one.data = static_cast<char*>(runs.data) + index * runs.stride[0] * item_size(runs.dtype);
    return one;
  }
};

}  // namespace tegula
