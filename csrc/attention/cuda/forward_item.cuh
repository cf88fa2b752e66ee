// What a block of threads of the forward kernels computes at a time, and how it gets there.
#pragma once

#include "forward_params.h"
#include "gradient_tiles.cuh"
#include "key_tiles.cuh"

namespace tegula {

// Kept in shared memory, since registers are for sums.
struct ForwardItem {
  Unit unit;
  int64_t first_row;
  int64_t chunk;              // the only one to compute; -1: all
  const uint16_t *q, *k, *v;  // of the batch entry; k and v of the unit's head
  uint16_t* out;
  float* lse;
  SeenByAll sight;  // of all rows, within the chunk
  KeyTiles tiles;   // that they visit
  int64_t next;     // the item after this one
};
static_assert(sizeof(ForwardItem) <= kItemBytes);

template <ForwardShape kShape>
struct ForwardRecord {
  union {
    ForwardItem item;
    unsigned char item_bytes[kItemBytes];
  };
  SeenKeys seen[kShape.rows()];    // by each row
  SeenByAll sights[kShape.warps];  // by each warp's rows
};

// An item's rows.
struct ItemRows {
  Unit unit;
  int64_t first;

  TEGULA_DEVICE ItemRows(const AttentionForwardParams& p, int64_t index, int block_rows)
      : unit(unit_of(p.a, index / p.chunks / p.row_blocks)),
        // The last rows first: under causal masks, they see the most.
        first((p.row_blocks - 1 - index / p.chunks % p.row_blocks) * block_rows) {}
};

// What one thread writes down before others look at the rows,
TEGULA_DEVICE void describe_item(const AttentionForwardParams& p, int64_t index,
                                 const ItemRows& rows, ForwardItem& item) {
  const AttentionArgs& a = p.a;
  const Unit& unit = rows.unit;
  item.unit = unit, item.first_row = rows.first;
  item.chunk = p.chunks > 1 ? index % p.chunks : -1;
  item.q = slab_of<const uint16_t>(a.q, unit.batch).data;
  item.k = slab_of<const uint16_t>(a.k, unit.batch).row(unit.key_head, 0);
  item.v = slab_of<const uint16_t>(a.v, unit.batch).row(unit.key_head, 0);
  item.out = slab_of<uint16_t>(a.out, unit.batch).data;
  item.lse = a.lse ? slab_of<float>(a.lse, unit.batch).data : nullptr;
}
// and when their sights are known.
template <int kCount>
TEGULA_DEVICE void sum_up_item(const SeenByAll (&sights)[kCount], int key_tile, ForwardItem& item) {
  item.sight = sights[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) item.sight = together(item.sight, sights[i]);
  if (item.chunk >= 0) {
    item.sight.lo = max(item.sight.lo, static_cast<int>(item.chunk * kKeyChunk));
    item.sight.hi = static_cast<int>(min(int64_t{item.sight.hi}, (item.chunk + 1) * kKeyChunk));
  }
  item.tiles = KeyTiles(item.sight, key_tile);
}

// What row `row` of the item sees, and what all rows of the warp's lanes see; `own`: the lane has a
// row.
TEGULA_DEVICE void look_at_rows(const AttentionArgs& a, const ItemRows& rows, int row, bool own,
                                SeenKeys* seen_rows, SeenByAll& sight) {
  const bool exists = own && rows.first + row < rows.unit.rows;
  SeenKeys seen;
  if (exists) seen = seen_by(a, rows.unit, rows.first + row);
  if (own) seen_rows[row] = seen;
  const SeenByAll all = seen_by_warp(seen, exists);
  if (threadIdx.x % 32 == 0) sight = all;
}

// Fills the record, and sends for the queries. All threads of the block see it then.
template <ForwardShape kShape>
TEGULA_DEVICE void start_item(const AttentionForwardParams& p, int64_t index, uint32_t queries,
                              ForwardRecord<kShape>& record) {
  const AttentionArgs& a = p.a;
  const ItemRows rows(p, index, kShape.rows());
  if (threadIdx.x == 0) describe_item(p, index, rows, record.item);
  // Each warp's lanes look at the warp's rows.
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  look_at_rows(a, rows, warp * kShape.warp_rows() + lane, lane < kShape.warp_rows(), record.seen,
               record.sights[warp]);
  __syncthreads();
  const RowPlaces places(rows.unit, rows.first);
  const Slab<const uint16_t> q{record.item.q, a.q.step(2), a.q.step(1), a.q.step(0)};
  load_tile<kShape.dim, kShape.rows(), kShape.threads()>(
      queries, [&](int row) { return places.row_of(q, row); }, static_cast<int>(a.dim), q.step,
      p.q_chunks);
  if (threadIdx.x == 0) sum_up_item(record.sights, kShape.keys(), record.item);
  __syncthreads();
}

// The number of the item that a block computes after `index`, the same for all its threads; they
// are done with all shared memory when this returns.
TEGULA_DEVICE int64_t next_item(const AttentionForwardParams& p, int64_t index, ForwardItem& item) {
  if (p.taken != nullptr && threadIdx.x == 0) {
    item.next = gridDim.x + static_cast<int64_t>(atomicAdd(p.taken, 1ull));
  }
  __syncthreads();
  return p.taken != nullptr ? item.next : index + gridDim.x;
}

}  // namespace tegula
