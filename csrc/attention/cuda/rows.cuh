// Which rows a block of threads computes, where they lie, and what they see.
//
// A unit is a batch entry and a key/value head. Its rows are those of all query heads that share
// that head, `group` of them: row r is query r / group of head first_head + r % group. So a tile of
// rows reads its keys once for all heads, whether there is one query or many.
#pragma once

#include "../../cuda/device.cuh"
#include "../../mask/row_keys.h"
#include "../attention.h"
#include "seen_keys.h"

namespace tegula {

// A (H, L, X) part of a view: of one batch entry. Steps count elements.
template <class T>
struct Slab {
  T* data;
  int64_t head_step, row_step, step;

  TEGULA_DEVICE T* row(int64_t head, int64_t index) const {
    return data + head * head_step + index * row_step;
  }
};

// Element offset of a batch entry in a view (..., H, L, X).
TEGULA_DEVICE int64_t batch_offset(const View& view, int64_t batch) {
  int64_t offset = 0;
#pragma unroll 1  // nearly always one axis; divisions are long
  for (int axis = view.rank - 4; axis > 0; --axis) {
    const int64_t rest = batch / view.shape[axis];
    offset += (batch - rest * view.shape[axis]) * view.stride[axis];
    batch = rest;
  }
  return view.rank > 3 ? offset + batch * view.stride[0] : 0;
}

// Of such a view.
template <class T>
TEGULA_DEVICE Slab<T> slab_of(const View& view, int64_t batch) {
  const int64_t offset = batch_offset(view, batch);
  return {view.at<T>(offset), view.step(2), view.step(1), view.step(0)};
}

struct RowPlace {
  int64_t head, query;
};

struct Unit {
  int64_t batch, key_head, first_head;
  int64_t group;  // query heads
  int64_t rows;   // group * q_len

  // Divisions of 64 bits take a hundred instructions.
  TEGULA_DEVICE RowPlace place(int64_t row) const {
    if (group == 1) return {first_head, row};
    if ((row | group) >> 32 == 0) {
      const uint32_t number = static_cast<uint32_t>(row), size = static_cast<uint32_t>(group);
      return {first_head + number % size, number / size};
    }
    return {first_head + row % group, row / group};
  }
  TEGULA_DEVICE int64_t head(int64_t row) const { return place(row).head; }
  TEGULA_DEVICE int64_t query(int64_t row) const { return place(row).query; }
};

// Units are counted batch entry by batch entry.
TEGULA_DEVICE Unit unit_of(const AttentionArgs& a, int64_t index) {
  const int64_t group = a.heads / a.key_heads;
  const int64_t batch = index / a.key_heads, key_head = index % a.key_heads;
  return {batch, key_head, key_head * group, group, group * a.q_len};
}

// What the intervals of a mask show to a query; a dense mask and a bias of -inf may take more.
TEGULA_DEVICE RowKeys keys_seen(const AttentionArgs& a, int64_t batch, int64_t head,
                                int64_t query) {
  if (!a.lo) return row_keys(0, a.k_len, 0, 0, a.k_len);
  const auto bound = [&](const View& view) -> int64_t {
    return *view.at<int32_t>(batch * view.stride[0] + head * view.stride[1] +
                             query * view.stride[2]);
  };
  if (!a.gap_lo) return row_keys(bound(a.lo), bound(a.hi), 0, 0, a.k_len);
  return row_keys(bound(a.lo), bound(a.hi), bound(a.gap_lo), bound(a.gap_hi), a.k_len);
}

TEGULA_DEVICE SeenKeys seen_by(const AttentionArgs& a, const Unit& unit, int64_t row) {
  SeenKeys seen;
  if (row >= unit.rows) return seen;
  const RowKeys keys = keys_seen(a, unit.batch, unit.head(row), unit.query(row));
  seen.lo = static_cast<int>(keys.lo), seen.hi = static_cast<int>(keys.hi);
  seen.gap_lo = static_cast<int>(keys.gap_lo), seen.gap_hi = static_cast<int>(keys.gap_hi);
  return seen;
}

// Rows that do not exist are left out of full_lo and full_hi, so that the last block of rows knows
// full tiles too; their results go nowhere. Called by all lanes of a warp; the result is
// everybody's.
TEGULA_DEVICE SeenByAll seen_by_warp(const SeenKeys& seen, bool exists) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  constexpr int kMost = 0x7FFFFFFF;
  const bool empty = seen.hi <= seen.lo, gap = seen.gap_lo < seen.gap_hi;
  // An empty row sees nothing of any gap; one without a gap leaves none.
  SeenByAll all{empty ? kMost : seen.lo, empty ? 0 : seen.hi,
                empty ? 0 : (gap ? seen.gap_lo : kMost), empty ? kMost : (gap ? seen.gap_hi : 0),
                // A row with a gap shows all of no more than what lies before it.
                !exists ? 0 : seen.lo, !exists ? kMost : (gap ? seen.gap_lo : seen.hi)};
  for (int step = 16; step > 0; step /= 2) {
    all.lo = min(all.lo, __shfl_xor_sync(kAll, all.lo, step));
    all.hi = max(all.hi, __shfl_xor_sync(kAll, all.hi, step));
    all.gap_lo = max(all.gap_lo, __shfl_xor_sync(kAll, all.gap_lo, step));
    all.gap_hi = min(all.gap_hi, __shfl_xor_sync(kAll, all.gap_hi, step));
    all.full_lo = max(all.full_lo, __shfl_xor_sync(kAll, all.full_lo, step));
    all.full_hi = min(all.full_hi, __shfl_xor_sync(kAll, all.full_hi, step));
  }
  return all;
}
TEGULA_DEVICE SeenByAll together(const SeenByAll& a, const SeenByAll& b) {
  return {min(a.lo, b.lo),         max(a.hi, b.hi),           max(a.gap_lo, b.gap_lo),
          min(a.gap_hi, b.gap_hi), max(a.full_lo, b.full_lo), min(a.full_hi, b.full_hi)};
}

}  // namespace tegula
