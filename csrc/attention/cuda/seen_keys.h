// What rows see of the keys, in 32 bits: keys number less than 2^31. Plain data, which hosts make
// room for and kernels fill.
#pragma once

#include "../../base/macros.h"

namespace tegula {

// Of one row: the keys [lo, hi) but those of [gap_lo, gap_hi). Rows that do not exist see nothing.
struct SeenKeys {
  int lo = 0, hi = 0, gap_lo = 0, gap_hi = 0;

  TEGULA_INLINE bool sees(int key) const {
    return key >= lo && key < hi && !(key >= gap_lo && key < gap_hi);
  }
  TEGULA_INLINE bool sees_all(int begin, int end) const {
    return begin >= lo && end <= hi && (end <= gap_lo || begin >= gap_hi);
  }
};

// What many rows see together. Keys outside [lo, hi) and inside [gap_lo, gap_hi) no row sees; the
// keys [full_lo, full_hi), if any, all rows see.
struct SeenByAll {
  int lo, hi, gap_lo, gap_hi, full_lo, full_hi;

  TEGULA_INLINE bool hides(int begin, int end) const {
    return end <= lo || begin >= hi || (begin >= gap_lo && end <= gap_hi);
  }
  TEGULA_INLINE bool shows_all(int begin, int end) const {
    return begin >= full_lo && end <= full_hi;
  }
};

}  // namespace tegula
