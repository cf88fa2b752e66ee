// Masks: from the key intervals of each query row to an array, and back.
//
// The normal form of a mask, which attention reads too: lo and hi, int32 (B, H, Lq).
// Query (b, h, i) sees the keys [lo, hi); with hi <= lo it sees none. Where some row sees two
// runs of keys, gap_lo and gap_hi, shaped alike, say what lies between them: nothing of
// [gap_lo, gap_hi) is seen, which is empty for the other rows. An irregular mask adds a dense
// array, bool (B, H, Lq, Lk): a key is visible when the intervals AND its byte say so. Views of
// size 1 are spread with stride 0 before they come here. Any strides; True means "may attend".
//
// fill   writes out, (B, H, Lq, Lk): every element once, about the speed of memset.
//          bool            1 visible, 0 hidden
//          any float type  0 visible, -inf hidden, to be added to scores
// scan   reads dense once and writes lo and hi: the first visible key of each row, and one
//        past the last; and its first gap, [hi, hi) without any. A row without a key gets
//        lo = Lk and 0 for the others, so that it widens no tile's range.
#pragma once

#include <cstdint>

#include "../base/view.h"

namespace tegula {

class TakenArena;

struct MaskFillArgs {
  View out;
  View lo, hi;
  View gap_lo, gap_hi;  // empty: no row has a gap
  View dense;           // empty: none
};

struct MaskScanArgs {
  View dense;
  View lo, hi, gap_lo, gap_hi;
};

// How many runs of keys some row has: more than two need the array.
enum class MaskRuns { kOne, kTwo, kMore };

// A summary of a dense mask, for skipping what it hides: one byte for kCellQueries queries by
// kCellKeys keys, Lq Lk / 1024 in all.
inline constexpr int64_t kCellQueries = 16, kCellKeys = 64;
enum MaskCell : uint8_t { kHidden, kMixed, kShown };

struct MaskCellsArgs {
  View dense;
  View cells;  // (B, H, Lq / kCellQueries, Lk / kCellKeys), rounded up, contiguous
};

// One instruction set's kernels, for rows [begin, end) of (B, H, Lq) in C order.
struct MaskKernels {
  // streaming: past the caches, where out is contiguous along keys.
  void (*fill)(const MaskFillArgs&, int64_t begin, int64_t end, bool streaming);
  MaskRuns (*scan)(const MaskScanArgs&, int64_t begin, int64_t end);
  void (*cells)(const MaskCellsArgs&, int64_t begin, int64_t end);  // rows of cells
};

// On up to `threads` threads (0: the setting).
void mask_fill(const MaskFillArgs& args, int threads);
MaskRuns mask_scan(const MaskScanArgs& args, int threads);
// The cells of `dense`, in `memory`, with strides 0 where they repeat. Reads dense once.
View mask_cells(const View& dense, TakenArena& memory, int threads);

}  // namespace tegula
