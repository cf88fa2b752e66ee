// What the backward kernels on tensor cores are launched with, and the shapes of their blocks.
#pragma once

#include "gradient_rows.h"

namespace tegula {

struct AttentionBackwardParams {
  AttentionGradArgs a;
  GradientRows rows;
  int stages;  // 2: the rows or keys of the next step are read during this one; 1: after it
  // Which arrays can be read or written 16 bytes at a time.
  bool q_chunks, k_chunks, v_chunks, grad_chunks, dq_chunks, dk_chunks, dv_chunks;
};

// Rows or keys of one step: what a block reads between two barriers.
inline constexpr int kStep = 32;
static_assert(kStep == kSightRows);

// Sums of 16 rows of a product take dim / 2 registers a thread, and there are 255. So a warp has
// `tiles` times 16 rows. More than one share what is read from shared memory, which tensor cores
// otherwise wait for.

// dk and dv: two warps share the keys of a pair, see dkdv_mma.cuh.
TEGULA_INLINE constexpr int pair_tiles(int dim) { return dim <= 64 ? 3 : dim <= 128 ? 2 : 1; }
TEGULA_INLINE constexpr int most_pairs(int dim) { return dim <= 64 ? 2 : 4; }
inline constexpr int kPairThreads = 64;

// dq: each warp has rows of its own.
TEGULA_INLINE constexpr int row_tiles(int dim) { return dim <= 128 ? 2 : 1; }
inline constexpr int kRowWarps = 4;

// dbias: entries of queries and keys, 32 of these at a time.
inline constexpr int kBiasWarps = 4;
inline constexpr int kBiasRows = kBiasWarps * 16;
TEGULA_INLINE constexpr int bias_tiles(int dim) { return dim <= 128 ? 2 : 1; }

// Shift, rest and delta of each row; and what each sees.
TEGULA_INLINE constexpr size_t number_bytes(int rows) { return size_t{3} * rows * sizeof(float); }
TEGULA_INLINE constexpr size_t seen_bytes(int rows) { return rows * sizeof(SeenKeys); }

TEGULA_INLINE constexpr size_t tile_bytes(int rows, int dim) {
  return static_cast<size_t>(rows) * dim * 2;
}

// Shared memory of a block.
TEGULA_INLINE constexpr size_t key_block_bytes(int dim, int pairs, int stages) {
  const int keys = pairs * pair_tiles(dim) * 16;
  return 2 * tile_bytes(keys, dim) +
         stages * (2 * tile_bytes(kStep, dim) + number_bytes(kStep) + seen_bytes(kStep)) +
         static_cast<size_t>(keys) * kStep * sizeof(float);
}
TEGULA_INLINE constexpr size_t row_block_bytes(int dim, int stages) {
  const int rows = kRowWarps * row_tiles(dim) * 16;
  return 2 * tile_bytes(rows, dim) + number_bytes(rows) + stages * 2 * tile_bytes(kStep, dim);
}

TEGULA_INLINE constexpr size_t bias_block_bytes(int dim) {
  return 2 * tile_bytes(kBiasRows + kStep * bias_tiles(dim), dim) + number_bytes(kBiasRows) +
         seen_bytes(kBiasRows);
}

// Some of the axes (..., H) of bias, taken as one axis in C order.
struct BiasAxes {
  int count = 0;
  int64_t total = 1;
  int64_t size[kMaxRank];
  int64_t place[kMaxRank];  // what a step adds to the number of a batch entry and head
  int64_t step[kMaxRank];   // and to an offset in dbias

  void add(int64_t its_size, int64_t its_place, int64_t its_step) {
    size[count] = its_size, place[count] = its_place, step[count] = its_step;
    ++count, total *= its_size;
  }
};

struct BiasGradientParams : AttentionBackwardParams {
  BiasAxes own;                    // axes along which entries of dbias differ
  BiasAxes shared;                 // axes along which they are summed
  bool along_queries, along_keys;  // these are summed as well
};

}  // namespace tegula
