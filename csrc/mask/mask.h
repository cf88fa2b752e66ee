// Masks: from one key interval per query row to an array, and back.
//
// The normal form of a mask, which attention reads too: lo and hi, int32 (B, H, Lq).
// Query (b, h, i) sees the keys [lo, hi); with hi <= lo it sees none. An irregular mask
// adds a dense array, bool (B, H, Lq, Lk): a key is visible when it lies in the interval
// AND its byte is not 0. Views of size 1 are spread with stride 0 before they come here.
// Any strides; True means "may attend".
//
// fill   writes out, (B, H, Lq, Lk): every element once, about the speed of memset.
//          bool            1 visible, 0 hidden
//          any float type  0 visible, -inf hidden, to be added to scores
// scan   reads dense once and writes lo and hi: the first visible key of each row, and one
//        past the last. A row without any gets lo = Lk, hi = 0, so that it widens no
//        tile's range. True when some row has a gap, that is, needs the array as well.
#pragma once

#include <cstdint>

#include "../base/view.h"

namespace tegula {

struct MaskFillArgs {
  View out;
  View lo, hi;
  View dense;  // empty: none
};

struct MaskScanArgs {
  View dense;
  View lo, hi;
};

// One instruction set's kernels, for rows [begin, end) of (B, H, Lq) in C order.
struct MaskKernels {
  // streaming: past the caches, where out is contiguous along keys.
  void (*fill)(const MaskFillArgs&, int64_t begin, int64_t end, bool streaming);
  bool (*scan)(const MaskScanArgs&, int64_t begin, int64_t end);
};

// On up to `threads` threads (0: the setting).
void mask_fill(const MaskFillArgs& args, int threads);
bool mask_scan(const MaskScanArgs& args, int threads);

}  // namespace tegula
