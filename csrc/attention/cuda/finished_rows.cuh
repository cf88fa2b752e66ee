// From a fragment's sums to rows of out and lse.
#pragma once

#include "forward_item.cuh"
#include "partial_rows.cuh"

namespace tegula {

// Writes lse, and rounds the rows of a fragment to rows [first, first + 16) of a tile; rows count
// from the item's first.
template <class T, int kDim>
TEGULA_DEVICE void round_rows(const AttentionArgs& a, const ForwardItem& item,
                              const float (&sums)[kDim / 8][4],
                              const RowSoftmax<float> (&softmax)[2], uint32_t tile, int first) {
  const RowPlaces places(item.unit, item.first_row);
  const Slab<const double> sinks{a.sinks, 1, 0, 0};
  const Slab<float> lse{item.lse, a.lse.step(2), a.lse.step(1), 1};
  const int lane = opaque(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + h * 8 + lane / 4;
    if (item.first_row + row >= item.unit.rows) continue;
    const double* const sink = a.sinks != nullptr ? places.row_of(sinks, row) : nullptr;
    const RowResult<float> result = result_of_row(a, sink, softmax[h]);
    if (item.lse != nullptr && lane % 4 == 0) *places.row_of(lse, row) = result.lse;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      store_shared_32(tile + tile_offset<kDim>(row, n) + lane % 4 * 4,
                      pack(output_of(a, sums[n][2 * h], result.factor),
                           output_of(a, sums[n][2 * h + 1], result.factor), T{}));
    }
  }
}

// Copies rows [first, first + count) of the tile to out, count a multiple of 8; called by a warp
// that has rounded them.
template <int kDim>
TEGULA_DEVICE void write_rows(const AttentionForwardParams& p, const ForwardItem& item,
                              uint32_t tile, int first, int count) {
  __syncwarp();
  const RowPlaces places(item.unit, item.first_row);
  const View& view = p.a.out;
  const Slab<uint16_t> out{item.out, view.step(2), view.step(1), view.step(0)};
  store_tile<kDim>(
      tile + first * kDim * 2, min(places.rows(first + count) - first, count),
      [&](int row) { return places.row_of(out, first + row); }, static_cast<int>(p.a.value_dim),
      out.step, p.out_chunks, opaque(threadIdx.x) % 32, 32);
}

}  // namespace tegula
