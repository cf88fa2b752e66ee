// Adds a tile's weighted values to the rows' sums.
#pragma once

#include "softmax.inl"

namespace tegula {
namespace {

// Units that hold keys `range`.
template <class F>
TEGULA_INLINE KeyRange units_of_keys(KeyRange range) {
  return {range.begin / F::kUnitValues, (range.end + F::kUnitValues - 1) / F::kUnitValues};
}

// Adds units `range` of `values` to the sums of kRows rows from `row` on, for kVectors
// vectors of d from `first` on.
template <int kRows, int kVectors, class T, class F>
TEGULA_INLINE void add_values(Context<T, F>& c, const Block<typename F::Compute>& block, int row,
                              KeyRange range, int64_t first, const typename F::Unit* values,
                              int64_t value_stride) {
  const int64_t d = first * kLanes<typename F::Compute>;
  // weights[unit][row] or weights[row][unit], see scores.inl
  const int64_t unit_step = block.few ? 1 : block.width();
  const int64_t row_step = block.few ? kKeyTile<F> / F::kUnitValues : 1;
  value_tile<F, kRows, kVectors>(
      c.w.weights + range.begin * unit_step + row * row_step, unit_step, row_step,
      values + range.begin * value_stride + d, value_stride, range.end - range.begin,
      c.w.sum + (block.slot + row) * c.w.value_stride + d, c.w.value_stride, c.w.rescale + row);
}

// The same for all of d.
template <int kRows, class T, class F>
TEGULA_INLINE void add_value_rows(Context<T, F>& c, const Block<typename F::Compute>& block,
                                  int row, KeyRange range, const typename F::Unit* values,
                                  int64_t value_stride) {
  for_panels<kValueVectors<kRows>>(
      0, c.w.value_stride / kLanes<typename F::Compute>, [&](int64_t first, auto vectors) {
        add_values<kRows, vectors.value>(c, block, row, range, first, values, value_stride);
      });
}

// Few rows: adds the values from where they lie, for kVectors vectors of d from `first` on. The
// numbers of a row lie side by side.
template <int kRows, int kVectors, class T, class F>
TEGULA_NOINLINE void add_stored_values(Context<T, F>& c, const Block<typename F::Compute>& block,
                                       KeyRange range, int64_t first) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>, kKeys = F::kUnitValues;
  const StoredRows<T> rows = stored_values(c);
  const int64_t key_step = rows.row_step;
  const auto* weights = c.w.weights;
  C* out = c.w.sum + block.slot * c.w.value_stride + first * kN;
  const T* values = rows.first + first * kN;
  // Two vectors at once take fewer steps where units hold two keys.
  constexpr bool kInterleaved = Packing<F, T>::kInterleaves && kVectors % 2 == 0;
  Vec<C> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) {
      sum[r][j] = opaque(load(out + r * c.w.value_stride + j * kN) * c.w.rescale[r]);
    }
    if constexpr (kInterleaved) {
      for (int j = 0; j < kVectors; j += 2) Packing<F, T>::alternate(sum[r][j], sum[r][j + 1]);
    }
  }
  const T* row = values + range.begin * kKeys * key_step;
  const auto add = [&](int unit, bool whole) {
    Vec<typename F::Unit> value[kVectors];
    TEGULA_UNROLL(8)
    for (int j = 0; j < kVectors; ++j) {
      if constexpr (!kInterleaved) {
        value[j] = Packing<F, T>::keys(row + j * kN, 1, kN, key_step, whole);
      } else if (j % 2 == 0) {
        Packing<F, T>::interleave(row + j * kN, key_step, whole, value[j], value[j + 1]);
      }
    }
    TEGULA_UNROLL(8)
    for (int j = 0; j < kVectors; ++j) {
      TEGULA_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        const auto weight = broadcast(weights[r * (kKeyTile<F> / kKeys) + unit]);
        sum[r][j] = F::multiply_add(sum[r][j], weight, value[j]);
      }
    }
    row += kKeys * key_step;
  };
  const int whole_end = static_cast<int>(smaller(range.end, c.tile.count / kKeys));
  const int sent_end = static_cast<int>(smaller(whole_end, (rows.exist - rows.ahead) / kKeys));
  int unit = range.begin;
  // The lines of this panel alone: whole rows, sent for with the first, would come in bursts.
  for (; unit < sent_end; ++unit) {
    for (int d = 0; d < kVectors * kN; d += 64 / static_cast<int>(sizeof(T))) {
      for (int i = 0; i < kKeys; ++i) {
        __builtin_prefetch(row + (rows.ahead + i) * key_step + d, 0, 2);
      }
    }
    add(unit, true);
  }
  TEGULA_UNROLL(2)
  for (; unit < whole_end; ++unit) add(unit, true);
  if (unit < range.end) add(unit, false);
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kInterleaved) {
      for (int j = 0; j < kVectors; j += 2) Packing<F, T>::follow(sum[r][j], sum[r][j + 1]);
    }
    for (int j = 0; j < kVectors; ++j) store(out + r * c.w.value_stride + j * kN, sum[r][j]);
  }
}

// Few rows: the weighted values of keys that all of them see, or of finite ones.
template <int kRows, class T, class F>
TEGULA_INLINE void add_few_rows(Context<T, F>& c, const Block<typename F::Compute>& block,
                                KeyRange range) {
  if (c.tile.values != nullptr) {
    return add_value_rows<kRows>(c, block, 0, range, c.tile.values, c.tile.value_stride);
  }
  for_panels<kValueVectors<kRows>>(
      0, c.w.value_stride / kLanes<typename F::Compute>, [&](int64_t first, auto vectors) {
        add_stored_values<kRows, vectors.value>(c, block, range, first);
      });
}

// No key of the tile's units that some row of the block sees is hidden from another.
template <class T, class F>
TEGULA_INLINE bool all_see_all(Context<T, F>& c, const Block<typename F::Compute>& block) {
  const KeyRange some = c.tile.local(block.sight.some), every = c.tile.local(block.sight.every);
  return !c.tile.hides && every.begin == some.begin && every.end == some.end &&
         every.begin % F::kUnitValues == 0 &&
         (every.end % F::kUnitValues == 0 || every.end == c.tile.count);
}

// Keys that some row of the block sees and another does not; their values meet weights
// of zero.
template <class T, class F>
TEGULA_INLINE bool boundary_values_finite(Context<T, F>& c,
                                          const Block<typename F::Compute>& block) {
  const KeyRange some = units_of_keys<F>(c.tile.local(block.sight.some));
  KeyRange every = c.tile.local(block.sight.every);
  if (c.tile.hides || every.empty()) every = {kKeyTile<F>, kKeyTile<F>};
  // Units that lie wholly inside `every` are no boundary.
  const int inner_begin = (every.begin + F::kUnitValues - 1) / F::kUnitValues;
  const int inner_end = every.end / F::kUnitValues;
  Vec<typename F::Unit> seen{};
  for (int unit = some.begin; unit < some.end; ++unit) {
    if (unit == inner_begin && inner_begin < inner_end) unit = inner_end;
    if (unit >= some.end) break;
    const auto* row = c.tile.values + unit * c.tile.value_stride;
    for (int64_t d = 0; d < c.w.value_stride; d += kLanes<typename F::Unit>) {
      seen = Packing<F, T>::probe(seen, load_unaligned(row + d));
    }
  }
  return Packing<F, T>::clean(seen);
}

template <class T, class F>
TEGULA_INLINE bool sees(Context<T, F>& c, const Block<typename F::Compute>& block, int row,
                        int key) {
  using C = typename F::Compute;
  const int64_t slot = block.slot + row;
  const int64_t at = c.tile.begin + key;
  if (at < block.sight.some.begin || at >= block.sight.some.end) return false;
  if (at < c.w.lo[slot] || at >= c.w.hi[slot]) return false;
  if (c.gaps && at >= c.w.gap_lo[slot] && at < c.w.gap_hi[slot]) return false;
  if (!c.additive) return true;
  const int64_t place = block.few ? row * kKeyTile<F> + key : key * block.width() + row;
  return c.w.additive[place] != -kInfinity<C>;
}

// The keys of the tile from the first to the last that the row sees, or some more of its group's.
template <class T, class F>
TEGULA_INLINE KeyRange row_in_tile(Context<T, F>& c, const Block<typename F::Compute>& block,
                                   int row) {
  const KeyRange range{static_cast<int32_t>(c.w.lo[block.slot + row]),
                       static_cast<int32_t>(c.w.hi[block.slot + row])};
  return c.tile.local(intersect(range, block.groups[row / kGroup<typename F::Compute>]));
}

// The rare case: a value at the boundary is NaN or infinite, and 0 times it would be
// NaN. Row by row, with the values that the row does not see replaced by zeros.
template <class T, class F>
TEGULA_NOINLINE void add_values_carefully(Context<T, F>& c,
                                          const Block<typename F::Compute>& block) {
  for (int row = 0; row < block.rows; ++row) {
    const KeyRange range = units_of_keys<F>(row_in_tile(c, block, row));
    if (range.empty()) continue;
    for (int unit = range.begin; unit < range.end; ++unit) {
      int keep = 0;
      for (int i = 0; i < F::kUnitValues; ++i) {
        keep |= sees(c, block, row, unit * F::kUnitValues + i) << i;
      }
      for (int64_t d = 0; d < c.w.value_stride; d += kLanes<typename F::Unit>) {
        store(c.w.clean_values + unit * c.w.value_stride + d,
              Packing<F, T>::without(load_unaligned(c.tile.values + unit * c.tile.value_stride + d),
                                     keep));
      }
    }
    add_value_rows<1>(c, block, row, range, c.w.clean_values, c.w.value_stride);
  }
}

template <class T, class F>
TEGULA_NOINLINE void add_values_block(Context<T, F>& c, const Block<typename F::Compute>& block,
                                      bool whole) {
  using C = typename F::Compute;
  // Few rows read values once: only what must be looked at first is worth packing.
  const bool from_memory =
      block.few && c.a.v.step(0) == 1 && c.a.value_dim == c.w.value_stride && all_see_all(c, block);
  if (!from_memory && c.tile.values == nullptr) c.pack_values();
  if (!whole && !from_memory && !boundary_values_finite(c, block)) {
    return add_values_carefully(c, block);
  }
  if (block.few) {
    const KeyRange range = units_of_keys<F>(c.tile.local(block.sight.some));
    return for_few_rows(block, [&](auto rows) { add_few_rows<rows.value>(c, block, range); });
  }
  // A panel of the values stays in the first cache while all rows pass over it.
  const auto* values = c.tile.values;
  const int64_t stride = c.tile.value_stride;
  constexpr int kRows = kGroup<C>;
  for_panels<kValueVectors<kRows>>(
      0, c.w.value_stride / kLanes<C>, [&](int64_t first, auto vectors) {
        for (int row = 0; row < block.rows; row += kRows) {
          const KeyRange range = units_of_keys<F>(c.tile.local(block.groups[row / kRows]));
          if (range.empty()) continue;
          add_values<kRows, vectors.value>(c, block, row, range, first, values, stride);
        }
      });
}

}  // namespace
}  // namespace tegula
