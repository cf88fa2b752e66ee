// What one query row sees under a mask's normal form.
#pragma once

#include <cstdint>

#include "../base/macros.h"

namespace tegula {

// The keys [lo, hi) but those of [gap_lo, gap_hi), which lies inside, with a key on either
// side, or is empty.
struct RowKeys {
  int64_t lo, hi, gap_lo, gap_hi;

  TEGULA_INLINE bool empty() const { return hi <= lo; }
  TEGULA_INLINE bool has_gap() const { return gap_lo < gap_hi; }
  TEGULA_INLINE int64_t count() const { return empty() ? 0 : hi - lo - (gap_hi - gap_lo); }
};

// Of numbers as they come; keys count from 0 to `k_len`.
TEGULA_INLINE RowKeys row_keys(int64_t lo, int64_t hi, int64_t gap_lo, int64_t gap_hi,
                               int64_t k_len) {
  if (lo < 0) lo = 0;
  if (hi > k_len) hi = k_len;
  if (gap_lo < gap_hi) {
    if (gap_lo <= lo && gap_hi > lo) lo = gap_hi;
    if (gap_hi >= hi && gap_lo < hi) hi = gap_lo;
  }
  if (hi <= lo) return {0, 0, 0, 0};
  if (gap_lo >= gap_hi || gap_lo <= lo || gap_hi >= hi) gap_lo = gap_hi = lo;
  return {lo, hi, gap_lo, gap_hi};
}

}  // namespace tegula
