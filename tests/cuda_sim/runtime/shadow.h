// What is known about each word of memory: who wrote it last and who has read it since.
//
// A record names an access: the block, the warp's clock, the warp, the lane. The clock of a warp
// ticks at everything that orders its memory accesses, and every warp knows up to which clock of
// each other warp it is ordered: a vector clock, one entry a warp.
#pragma once

#include <stdint.h>

namespace cusim {

using Record = uint64_t;
constexpr int kLaneShift = 2, kWarpShift = 7, kClockShift = 12, kBlockShift = 32;
constexpr uint64_t kMaxClock = (1ull << (kBlockShift - kClockShift)) - 1;
constexpr uint64_t kThreadMask = (1ull << kClockShift) - (1ull << kLaneShift);

// Records of writes that no thread of a kernel made; their block is 0.
constexpr Record kUnallocated = 0, kUnwritten = 4, kHostWrite = 8, kReadOnly = 12;

// The lowest two bits.
enum WriteState : uint32_t {
  kPlainWrite,
  kAtomicWrite,
  kPendingWrite,  // an asynchronous copy that has not been waited for
  kSplitWord,     // the bytes of the word have cells of their own
};
enum ReadState : uint32_t { kOneLane, kLanesOfWarp, kSeveralWarps, kSeveralBlocks };

inline uint32_t block_of(Record r) { return uint32_t(r >> kBlockShift); }
inline uint32_t clock_of(Record r) { return uint32_t(r >> kClockShift & kMaxClock); }
inline uint32_t warp_of(Record r) { return r >> kWarpShift & 31; }
inline uint32_t lane_of(Record r) { return r >> kLaneShift & 31; }
inline uint32_t thread_of(Record r) { return warp_of(r) * 32 + lane_of(r); }
inline uint32_t state_of(Record r) { return r & 3; }
inline bool same_thread(Record a, Record b) { return ((a ^ b) & kThreadMask) == 0; }

// Where a record stands for an entry of a table instead of an access.
inline uint32_t index_of(Record r) { return uint32_t(r) >> 2; }
inline Record indexed(uint32_t block, uint32_t index, uint32_t state) {
  return uint64_t(block) << kBlockShift | uint64_t(index) << 2 | state;
}

struct Cell {  // of four bytes
  Record write = 0, read = 0;
  uint32_t write_at = 0, read_at = 0;  // lines of the source, for messages
};
struct SplitCells {
  Cell byte[4];
};

}  // namespace cusim
