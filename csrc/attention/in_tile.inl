// A block of rows in one tile. Its ranges of keys reach from the first to the last key that
// some row sees; where rows have gaps, or a dense mask hides whole cells of queries and keys,
// the block is narrowed to what they see of the tile.
#pragma once

#include "context.inl"

namespace tegula {
namespace {

// What a dense mask shows in the cells of the row.
template <class T, class F>
TEGULA_INLINE const uint8_t* cells_of(const Context<T, F>& c, int64_t slot) {
  const View& cells = c.a.cells;
  return cells.at<uint8_t>(c.task.batch * cells.stride[0] + c.w.head[slot] * cells.stride[1] +
                           c.w.query[slot] / kCellQueries * cells.stride[2]);
}

// Whether a dense mask shows some row of the block some of these keys.
template <class T, class F, class C = typename F::Compute>
TEGULA_INLINE bool shows_some(const Context<T, F>& c, const Block<C>& block, KeyRange keys) {
  for (int64_t r = 0; r < block.rows;) {
    const uint8_t* cells = cells_of(c, block.slot + r);
    for (int64_t cell = keys.begin / kCellKeys; cell * kCellKeys < keys.end; ++cell) {
      if (cells[cell] != kHidden) return true;
    }
    const int64_t query = c.w.query[block.slot + r];  // on to the next row of cells
    r += smaller(kCellQueries - query % kCellQueries, c.a.q_len - query);
  }
  return false;
}

// `keys` of the row without what the dense mask hides at their ends. `shown` becomes false
// where it hides some; cells of the tile in which it shows some join c.seen_cells.
template <class T, class F>
TEGULA_INLINE KeyRange shown_keys(Context<T, F>& c, int64_t slot, KeyRange keys, bool& shown) {
  constexpr int32_t kKeys = kCellKeys;
  const uint8_t* cells = cells_of(c, slot);
  const int32_t of_tile = c.tile.begin / kKeys;
  KeyRange seen{kNever, -1};
  for (int32_t cell = keys.begin / kKeys; cell * kKeys < keys.end; ++cell) {
    shown &= cells[cell] == kShown;
    if (cells[cell] == kHidden) continue;
    c.seen_cells |= 1u << (cell - of_tile);
    widen(seen, {cell * kKeys, (cell + 1) * kKeys});
  }
  return intersect(keys, seen);
}

// Makes `block` what `whole` sees of `keys`, which lie in the tile, row by row; false when that
// is nothing.
template <class T, class F, class C = typename F::Compute>
TEGULA_NOINLINE bool narrow(Context<T, F>& c, const Block<C>& whole, KeyRange keys,
                            Block<C>& block) {
  block = whole;
  block.sight = blind();
  for (auto& lane : block.lanes) lane = blind();
  for (auto& group : block.groups) group = blind().some;
  bool shown = true;  // the dense mask hides nothing
  c.seen_cells = 0;
  for (int r = 0; r < block.rows; ++r) {
    const int64_t slot = block.slot + r;
    KeyRange gap{kNever, -1};
    if (c.gaps) {
      gap = {static_cast<int32_t>(c.w.gap_lo[slot]), static_cast<int32_t>(c.w.gap_hi[slot])};
    }
    KeyRange some =
        intersect({static_cast<int32_t>(c.w.lo[slot]), static_cast<int32_t>(c.w.hi[slot])}, keys);
    some = trimmed(some, gap);
    if (c.a.cells && !some.empty()) some = shown_keys(c, slot, some, shown);
    if (some.empty()) some = {kNever, -1};
    const KeyRange every = longest_beside(some, gap);
    add_row(block.sight, some, every);
    add_row(block.lanes[r / kLanes<C>], some, every);
    widen(block.groups[r / kGroup<C>], some);
  }
  if (c.a.cells) {
    c.additive = c.a.bias || !shown;
    c.tile.hides = false;
  }
  return !block.sight.some.empty();
}

// The block as the tile needs it; null where its rows see nothing of the tile.
template <class T, class F, class C = typename F::Compute>
TEGULA_INLINE const Block<C>* in_tile(Context<T, F>& c, const Block<C>& block) {
  if (!c.sees_some(block, c.tile.range())) return nullptr;
  c.gapped = c.gaps && !intersect(block.gap.some, c.tile.range()).empty();
  if (!c.gapped && !c.a.cells) return &block;
  if (c.a.cells && !shows_some(c, block, c.tile.range())) return nullptr;
  return narrow(c, block, c.tile.range(), c.block_in_tile) ? &c.block_in_tile : nullptr;
}

// Whether cells that some row sees lie on both sides of cells that none does.
TEGULA_INLINE bool has_hole(uint32_t cells) {
  const uint32_t moved = cells >> __builtin_ctz(cells | 1u << 31);
  return (moved & (moved + 1)) != 0;
}

}  // namespace
}  // namespace tegula
