// Tiles of 16-bit rows in shared memory, as tensor cores read them.
//
// A tile has kRows rows of kDim elements, kDim a multiple of 32 and at least the head size: what
// lies behind the last element of a row, and rows that nobody wants, are zeros. 16-byte chunks are
// permuted within each row so that the 8 rows that ldmatrix reads at a time lie in 8 different
// groups of banks.
#pragma once

#include "../../cuda/ptx.cuh"
#include "chunks.h"
#include "rows.cuh"

namespace tegula {

// Byte offset of chunk `chunk` of row `row`.
template <int kDim>
TEGULA_DEVICE uint32_t tile_offset(int row, int chunk) {
  static_assert(kDim % 32 == 0);
  constexpr int kChunks = kDim / kChunk;
  const int turn = kDim % 64 == 0 ? row & 7 : row >> 1 & 3;
  return static_cast<uint32_t>(row * kChunks + (chunk ^ turn)) * 16;
}

// `place` is that of chunk 0 or 1 of some row: from there to the row `down` further, a multiple of
// 8, and chunk 2 `along` or 2 `along` + 1. Tiles lie at multiples of 128. With numbers known at
// compile time, few of these addresses need a register of their own.
template <int kDim>
TEGULA_DEVICE uint32_t fragment(uint32_t place, int down, int along) {
  constexpr int kTurns = kDim % 64 == 0 ? 4 : 2;  // as many, and the permutation starts anew
  return (place ^ along % kTurns * 32) + along / kTurns * kTurns * 32 + down * kDim * 2;
}

// Numbers `step` apart, as far as there are any.
TEGULA_DEVICE uint4 gather_chunk(const uint16_t* from, int count, int64_t step) {
  uint32_t pairs[kChunk / 2] = {};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (i < count) pairs[i / 2] |= static_cast<uint32_t>(from[i * step]) << i % 2 * 16;
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

// Copies rows [0, kRows) to the tile at `to`: row r from `row_at(r)`, a pointer to its first
// element, or null for zeros. `size` elements a row, `step` elements apart. The copies of `chunks`
// are asynchronous, others done when this returns; either way others see them after a barrier.
// kThreads 0: as many threads as the block has.
template <int kDim, int kRows, int kThreads, class RowAt>
TEGULA_DEVICE void load_tile(uint32_t to, RowAt row_at, int size, int64_t step, bool chunks) {
  constexpr int kChunks = kDim / kChunk;
  const int threads = kThreads > 0 ? kThreads : static_cast<int>(blockDim.x);
  if (chunks) {
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kChunks; i += threads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const uint16_t* from = row_at(row);
      const bool there = from != nullptr && chunk * kChunk < size;
      // An address of zeros is never read, but has to be one.
      copy_async_16(to + tile_offset<kDim>(row, chunk), there ? from + chunk * kChunk : from,
                    there);
    }
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kChunks; i += threads) {
    const int row = i / kChunks, first = i % kChunks * kChunk;
    const uint16_t* from = row_at(row);
    const int count = from != nullptr ? size - first : 0;
    store_shared_128(to + tile_offset<kDim>(row, first / kChunk),
                     gather_chunk(from + first * step, count, step));
  }
}

// The same of rows [lo, hi), which lie `row_step` apart from `first` on, the address of row 0: with
// less to compute on the way. The other rows are zeros.
template <int kDim, int kRows, int kThreads>
TEGULA_DEVICE void load_rows(uint32_t to, const uint16_t* first, int64_t row_step, int lo, int hi,
                             int size, int64_t step, bool chunks) {
  constexpr int kChunks = kDim / kChunk, kPass = kThreads / kChunks;  // rows at a time
  static_assert(kPass > 0);
  const int thread = opaque(static_cast<int>(threadIdx.x));
  const int row = thread / kChunks, chunk = thread % kChunks;
  if (kPass * kChunks < kThreads && row >= kPass) return;
  const bool some = chunk * kChunk < size;
  const uint16_t* from = first + row * row_step + chunk * kChunk * step;
  row_step *= kPass;
  if (chunks) {
#pragma unroll
    for (int i = 0; i * kPass < kRows; ++i, from += row_step) {
      const int at = row + i * kPass;
      if (kRows % kPass != 0 && at >= kRows) break;
      const bool there = some && at >= lo && at < hi;
      copy_async_16(to + tile_offset<kDim>(at, chunk), there ? from : first, there);
    }
    return;
  }
#pragma unroll 1
  for (int at = row; at < kRows; at += kPass, from += row_step) {
    const int count = at >= lo && at < hi ? size - chunk * kChunk : 0;
    store_shared_128(to + tile_offset<kDim>(at, chunk), gather_chunk(from, count, step));
  }
}

}  // namespace tegula
