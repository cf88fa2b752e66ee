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

// Shift and delta of each row, and what it sees.
TEGULA_INLINE constexpr size_t number_bytes(int rows) {
  return static_cast<size_t>(rows) * (2 * sizeof(float) + sizeof(SeenKeys));
}

TEGULA_INLINE constexpr size_t tile_bytes(int rows, int dim) {
  return static_cast<size_t>(rows) * dim * 2;
}

// Shared memory of a block.
TEGULA_INLINE constexpr size_t key_block_bytes(int dim, int pairs, int stages) {
  const int keys = pairs * pair_tiles(dim) * 16;
  return 2 * tile_bytes(keys, dim) + stages * (2 * tile_bytes(kStep, dim) + number_bytes(kStep)) +
         static_cast<size_t>(keys) * kStep * sizeof(float);
}
TEGULA_INLINE constexpr size_t row_block_bytes(int dim, int stages) {
  const int rows = kRowWarps * row_tiles(dim) * 16;
  return 2 * tile_bytes(rows, dim) + number_bytes(rows) + stages * 2 * tile_bytes(kStep, dim);
}

}  // namespace tegula
