// Which tiles of keys some rows visit, in order.
#pragma once

#include "rows.cuh"

namespace tegula {

// Tiles lie at multiples of their size. Those that no row sees are left out: before the first and
// behind the last visible key, and inside a gap that all rows have.
class KeyTiles {
 public:
  KeyTiles() = default;
  TEGULA_DEVICE KeyTiles(const SeenByAll& sight, int size) {
    if (sight.hi <= sight.lo) return;
    first_ = sight.lo / size;
    const int end = (sight.hi - 1) / size + 1;
    count_ = end - first_, gap_ = end;
    if (sight.gap_lo >= sight.gap_hi) return;
    const int gap_begin = max(first_, (sight.gap_lo - 1) / size + 1);
    const int gap_end = min(end, sight.gap_hi / size);
    if (gap_begin >= gap_end) return;
    gap_ = gap_begin, skip_ = gap_end - gap_begin, count_ -= skip_;
  }

  TEGULA_DEVICE int count() const { return count_; }
  // The number of the i-th of them.
  TEGULA_DEVICE int operator[](int i) const {
    const int tile = first_ + i;
    return tile < gap_ ? tile : tile + skip_;
  }

 private:
  int first_ = 0, count_ = 0;
  int gap_ = 0, skip_ = 0;  // tiles from gap_ on are `skip_` further
};

}  // namespace tegula
