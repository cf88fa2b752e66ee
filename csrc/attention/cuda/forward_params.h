// What the forward kernels on tensor cores are launched with, and the shapes of their blocks.
#pragma once

#include "../attention.h"
#include "rich.h"
#include "seen_keys.h"

namespace tegula {

inline constexpr int kItemBytes = 160;  // of a ForwardItem

// A block of threads: each warp has row_tiles times 16 rows, and goes through tiles of keys.
struct ForwardShape {
  int dim;  // a head_class
  int warps;
  int row_tiles;  // what is read of a key serves so many products
  int stages;     // tiles of keys in shared memory, and as many of values

  // The same for all shapes of a head size, since a row's bits depend on it.
  TEGULA_INLINE constexpr int keys() const { return dim >= 192 ? 32 : 64; }
  TEGULA_INLINE constexpr int threads() const { return warps * 32; }
  TEGULA_INLINE constexpr int warp_rows() const { return row_tiles * 16; }
  TEGULA_INLINE constexpr int rows() const { return warps * warp_rows(); }

  // Shared memory: q (then out), keys, values, and a ForwardRecord.
  TEGULA_INLINE constexpr int tile_bytes() const { return keys() * dim * 2; }
  TEGULA_INLINE constexpr int keys_at() const { return rows() * dim * 2; }
  TEGULA_INLINE constexpr int values_at() const { return keys_at() + stages * tile_bytes(); }
  TEGULA_INLINE constexpr int record_at() const { return values_at() + stages * tile_bytes(); }
  TEGULA_INLINE constexpr int record_bytes() const {
    return kItemBytes + rows() * static_cast<int>(sizeof(SeenKeys)) +
           warps * static_cast<int>(sizeof(SeenByAll));
  }
  TEGULA_INLINE constexpr int shared_bytes() const { return record_at() + record_bytes(); }
};

// Many rows: 4 warps, with 32 rows each as far as registers go; what one block waits for, another
// one on the same processor computes through. Few rows: one warp, which has more keys on their way.
TEGULA_INLINE constexpr ForwardShape forward_shape(int dim, bool rich, int warps) {
  if (warps == 1) return {dim, 1, 1, 2};
  return {dim, 4, !rich && dim <= 128 ? 2 : 1, 1};
}

inline constexpr int kFinishThreads = 128;  // a warp for each row of split calls

// Work comes in items: a block of rows of a unit (rows.cuh), and all keys or one chunk of them.
struct AttentionForwardParams {
  AttentionArgs a;
  int64_t row_blocks = 0;  // of a unit
  int64_t chunks = 1;      // of keys, one an item; 1: items have all keys
  int64_t items = 0;
  // Counts items that blocks have taken, beyond their first; null: each has the item of its number
  // and every gridDim.x-th from there on.
  unsigned long long* taken = nullptr;
  // Results of chunks, before they are folded: `width` sums of a row, and its RowSoftmax. A row of
  // an item's chunk has a place of its own, the rows of an item with all keys are those of the
  // block that computes it. Null where keys make one chunk.
  float* sums = nullptr;
  float* softmaxes = nullptr;
  int width = 0;  // value_dim rounded up to 8
  // Which arrays can be read or written 16 bytes at a time.
  bool q_chunks = false, k_chunks = false, v_chunks = false, out_chunks = false;
};

}  // namespace tegula
