// The backward pass of one task, see backward.h.
//
//   for each chunk of keys                         packed once, dk and dv stay in the cache
//     for each chunk of rows                       a cell
//       for each group of blocks of rows
//         for each tile of the chunk
//           for each block that sees it
//             weights <- exp(q k^T - lse)          gradient_weights.inl
//             slopes  <- weights (grad_out v^T - delta)
//             dq      <- dq + slopes k
//           dv <- dv + weights^T grad_out,  dk <- dk + slopes^T q
//
// The group holds the weights of several blocks, so that sums over rows are long enough to
// pay for loading and storing what they add to.
#pragma once

#include "gradient_weights.inl"

namespace tegula {
namespace {

// ---- sums over keys: dq ----

// dq[row][d] += the sum over keys `range` of slopes[key][row] keys[key][d], for kRows rows of
// the block and kVectors vectors of d from `first` on.
template <int kRows, int kVectors, class T, class F>
TEGULA_INLINE void add_query_panel(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                   int row, int column, KeyRange range, int64_t first,
                                   const typename F::Compute* keys) {
  using C = typename F::Compute;
  const int64_t d = first * kLanes<C>, stride = c.s.dim_stride;
  gradient_tile<SumFormat<F>, kRows, kVectors>(
      c.s.slopes + range.begin * kGradientRows<C> + column + row, kGradientRows<C>, 1,
      keys + range.begin * stride + d, stride, range.end - range.begin,
      c.s.dq_cell + (block.slot + row) * stride + d, stride);
}

// A key that some row must not meet holds NaN or infinity: row by row, with a copy of the
// keys in which those are zeros.
template <class T, class F>
TEGULA_NOINLINE void add_queries_carefully(GradContext<T, F>& c,
                                           const Block<typename F::Compute>& block, int column) {
  const int64_t stride = c.s.dim_stride;
  const auto* keys = c.s.key_rows + c.tile_key() * stride;
  for (int row = 0; row < block.rows; ++row) {
    const KeyRange range = c.tile.local({static_cast<int32_t>(c.w.lo[block.slot + row]),
                                         static_cast<int32_t>(c.w.hi[block.slot + row])});
    if (range.empty()) continue;
    for (int key = range.begin; key < range.end; ++key) {
      const bool seen = sees(c, block, row, key);
      for (int64_t d = 0; d < stride; ++d) {
        c.s.clean[key * stride + d] = seen ? keys[key * stride + d] : 0;
      }
    }
    for_panels<kValueVectors<1>>(
        0, stride / kLanes<typename F::Compute>, [&](int64_t first, auto vectors) {
          add_query_panel<1, vectors.value>(c, block, row, column, range, first, c.s.clean);
        });
  }
}

template <class T, class F>
TEGULA_NOINLINE void add_queries(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                 int column, bool whole) {
  using C = typename F::Compute;
  if (!whole && !c.tile_finite[c.tile_key() / kGradientTile]) {
    return add_queries_carefully(c, block, column);
  }
  constexpr int kRows = kGroup<C>;
  const int64_t stride = c.s.dim_stride;
  const C* keys = c.s.key_rows + c.tile_key() * stride;
  // A panel of the keys stays in the first cache while all rows pass over it.
  for_panels<kValueVectors<kRows>>(0, stride / kLanes<C>, [&](int64_t first, auto vectors) {
    for (int row = 0; row < block.rows; row += kRows) {
      const KeyRange range = c.tile.local(block.groups[row / kRows]);
      if (range.empty()) continue;
      add_query_panel<kRows, vectors.value>(c, block, row, column, range, first, keys);
    }
  });
}

// ---- sums over rows: dk, dv ----

// The columns that a group of keys takes part in, with zeros in the gaps between them.
struct ColumnRange {
  int begin = 0, end = 0;
};

template <class T, class F>
TEGULA_INLINE ColumnRange columns_of(GradContext<T, F>& c, const Group<typename F::Compute>& group,
                                     int key) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  const auto meets = [&](int j) {
    return group.ranges[j].begin <= key && key < group.ranges[j].end;
  };
  int first = 0, last = group.columns / kN;
  while (first < last && !meets(first)) ++first;
  while (last > first && !meets(last - 1)) --last;
  for (int j = first; j < last; ++j) {
    if (meets(j)) continue;
    for (int k = key; k < key + kGroupRows; ++k) {
      store(c.s.weights + k * kGradientRows<C> + j * kN, Vec<C>{});
      store(c.s.slopes + k * kGradientRows<C> + j * kN, Vec<C>{});
    }
  }
  return {first * kN, last * kN};
}

// One of the two sums over rows: sums[key][d] += weights[key][column] rows[column][d].
template <class C>
struct KeySum {
  const C* weights;
  const C* rows;
  int64_t stride;  // of rows and sums
  C* sums;         // of the tile
};

// For kKeys keys from `key` on and kVectors vectors of d from `first` on.
template <class F, int kKeys, int kVectors, class C = typename F::Compute>
TEGULA_INLINE void add_key_panel(const KeySum<C>& sum, int key, ColumnRange columns, int64_t first,
                                 const C* rows) {
  const int64_t d = first * kLanes<C>;
  gradient_tile<SumFormat<F>, kKeys, kVectors>(
      sum.weights + key * kGradientRows<C> + columns.begin, 1, kGradientRows<C>,
      rows + columns.begin * sum.stride + d, sum.stride, columns.end - columns.begin,
      sum.sums + key * sum.stride + d, sum.stride);
}

// For all keys of the tile, a panel of the rows after the other.
template <class T, class F>
TEGULA_NOINLINE void add_keys(GradContext<T, F>& c, const ColumnRange* columns,
                              const KeySum<typename F::Compute>& sum) {
  for_panels<kValueVectors<kGroupRows>>(
      0, sum.stride / kLanes<typename F::Compute>, [&](int64_t first, auto vectors) {
        for (int key = 0; key < c.tile.count; key += kGroupRows) {
          const ColumnRange range = columns[key / kGroupRows];
          if (range.end <= range.begin) continue;
          add_key_panel<F, kGroupRows, vectors.value>(sum, key, range, first, sum.rows);
        }
      });
}

// A row that some key must not meet holds NaN or infinity: key by key, with a copy of the
// rows in which those are zeros.
template <class T, class F>
TEGULA_NOINLINE void add_keys_carefully(GradContext<T, F>& c, const ColumnRange* columns,
                                        const KeySum<typename F::Compute>& sum) {
  using C = typename F::Compute;
  for (int key = 0; key < c.tile.count; ++key) {
    const ColumnRange range = columns[key / kGroupRows];
    if (range.end <= range.begin) continue;
    for (int column = range.begin; column < range.end; ++column) {
      const bool hidden = c.s.hidden[key * kGradientRows<C> + column];
      for (int64_t d = 0; d < sum.stride; ++d) {
        c.s.clean[column * sum.stride + d] = hidden ? 0 : sum.rows[column * sum.stride + d];
      }
    }
    for_panels<kValueVectors<1>>(0, sum.stride / kLanes<C>, [&](int64_t first, auto vectors) {
      add_key_panel<F, 1, vectors.value>(sum, key, range, first, c.s.clean);
    });
  }
}

// Which pairs of the block and the tile are hidden, before the next block replaces what says so.
template <class T, class F>
TEGULA_NOINLINE void note_hidden(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                 int column, bool whole) {
  using C = typename F::Compute;
  for (int key = 0; key < c.tile.count; ++key) {
    uint8_t* hidden = c.s.hidden + key * kGradientRows<C> + column;
    for (int row = 0; row < block.rows; ++row) hidden[row] = !whole && !sees(c, block, row, key);
  }
}

// ---- cells ----

// One group of rows against one tile of keys.
template <class T, class F>
TEGULA_NOINLINE void differentiate_group(GradContext<T, F>& c,
                                         Group<typename F::Compute>& group) {
  using C = typename F::Compute;
  bool seen = false;
  group.mixed = false;
  for (KeyRange& range : group.ranges) range = {0, 0};
  if (!group.finite) __builtin_memset(c.s.hidden, 1, kGradientTile * kGradientRows<C>);
  for (int b = group.first; b < group.first + group.blocks; ++b) {
    const Block<C>& block = c.w.blocks[b];
    if (intersect(block.sight.some, c.tile.range()).empty()) {
      group.mixed = true;
      continue;
    }
    seen = true;
    const int column = group.column_of(block);
    const bool whole = differentiate_block(c, group, block, c.a.softcap > 0);
    group.mixed |= !whole;
    if (!group.finite) note_hidden(c, block, column, whole);
    add_queries(c, block, column, whole);
  }
  if (!seen) return;
  ColumnRange columns[kGradientTile / kGroupRows];
  for (int key = 0; key < c.tile.count; key += kGroupRows) {
    columns[key / kGroupRows] = columns_of(c, group, key);
  }
  const int64_t stride = c.s.dim_stride, value_stride = c.s.value_stride;
  const KeySum<C> sums[] = {
      {c.s.weights, c.s.grad_rows + group.slot * value_stride, value_stride,
       c.s.dv_cell + c.tile_key() * value_stride},
      {c.s.slopes, c.s.query_rows + group.slot * stride, stride,
       c.s.dk_cell + c.tile_key() * stride}};
  for (const KeySum<C>& sum : sums) {
    group.mixed && !group.finite ? add_keys_carefully(c, columns, sum) : add_keys(c, columns, sum);
  }
}

// The next group: consecutive blocks from `first` on, up to `end`, whose columns fit.
template <class T, class F>
TEGULA_INLINE Group<typename F::Compute> group_from(GradContext<T, F>& c, int first, int end) {
  using C = typename F::Compute;
  Group<C> group;
  group.first = first;
  group.slot = c.w.blocks[first].slot;
  for (int b = first; b < end; ++b) {
    const int width = c.w.blocks[b].width();
    if (group.columns + width > kGradientRows<C>) break;
    group.columns += width;
    group.finite &= c.s.finite[b];
    ++group.blocks;
  }
  return group;
}

// Blocks [first, end) of one row chunk against the chunk of keys.
template <class T, class F>
TEGULA_NOINLINE void differentiate_cell(GradContext<T, F>& c, int first, int end) {
  while (first < end) {
    Group<typename F::Compute> group = group_from(c, first, end);
    for (int32_t begin = 0; begin < c.chunk_count; begin += kGradientTile) {
      c.enter_chunk_tile(begin);
      differentiate_group(c, group);
    }
    first += group.blocks;
  }
}

template <class C>
TEGULA_INLINE void add_and_clear(C* total, C* cell, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes<C>) {
    store(total + i, load(total + i) + load(cell + i));
    store(cell + i, Vec<C>{});
  }
}

// All rows of the task against key chunk `chunk`: dk and dv are complete, dq_cell is its part.
template <class T, class F>
TEGULA_NOINLINE void differentiate_chunk(GradContext<T, F>& c, int64_t chunk) {
  using C = typename F::Compute;
  c.pack_chunk(chunk);
  const int64_t dk_size = kGradientKeys * c.s.dim_stride, dv_size = kGradientKeys * c.s.value_stride;
  fill(c.s.dk, dk_size, C(0)), fill(c.s.dv, dv_size, C(0));
  const bool cells = c.s.dk_cell != c.s.dk || c.s.dv_cell != c.s.dv;
  if (cells) fill(c.s.dk_cell, dk_size, C(0)), fill(c.s.dv_cell, dv_size, C(0));
  const auto sees_chunk = [&](int b) {
    return !intersect(c.w.blocks[b].sight.some, c.chunk_range()).empty();
  };
  for (int first = 0; first < c.block_count;) {
    const int64_t row_chunk = c.unit_row(c.w.blocks[first]) / kRowChunk<C>;
    int end = first;
    bool seen = false;
    while (end < c.block_count && c.unit_row(c.w.blocks[end]) / kRowChunk<C> == row_chunk) {
      if (sees_chunk(end)) {
        seen = true;
        if (!c.s.packed[end]) c.pack_rows(end);
      }
      ++end;
    }
    // Blocks that see nothing of the chunk only separate others; those at the ends drop out.
    int begin = first, stop = end;
    while (begin < stop && !sees_chunk(begin)) ++begin;
    while (stop > begin && !sees_chunk(stop - 1)) --stop;
    for (int b = begin; b < stop; ++b) {
      if (!c.s.packed[b]) c.pack_rows(b);
    }
    if (seen) {
      differentiate_cell(c, begin, stop);
      if (cells) add_and_clear(c.s.dk, c.s.dk_cell, dk_size);
      if (cells) add_and_clear(c.s.dv, c.s.dv_cell, dv_size);
    }
    first = end;
  }
}

// ---- results ----

template <class T, class C>
TEGULA_INLINE void write_row(const C* from, C factor, int64_t dim, T* to, int64_t step) {
  int64_t d = 0;
  if (step == 1) {
    for (; d + kLanes<C> <= dim; d += kLanes<C>) {
      store_as<C>(to + d, load_unaligned(from + d) * factor);
    }
  }
  for (; d < dim; ++d) store_one<C>(to + d * step, from[d] * factor);
}

// Keys of one chunk, from sums that lie dense in whole vectors.
template <class T, class C>
TEGULA_NOINLINE void write_keys(const AttentionGradArgs& g, const AttentionTask& task,
                                int64_t chunk, const C* dk, const C* dv) {
  const int64_t key_head = task.first_head / (g.heads / g.key_heads);
  const int64_t begin = chunk * kGradientKeys;
  const int64_t count = smaller(kGradientKeys, g.k_len - begin);
  const auto base = [&](const View& view) {
    return view.at<T>(view.lead_offset(task.batch, view.rank - 3) + key_head * view.step(2) +
                      begin * view.step(1));
  };
  T *to_dk = base(g.dk), *to_dv = base(g.dv);
  const int64_t dim_stride = round_up(g.dim, kLanes<C>);
  const int64_t value_stride = round_up(g.value_dim, kLanes<C>);
  for (int64_t key = 0; key < count; ++key) {
    write_row(dk + key * dim_stride, static_cast<C>(g.scale), g.dim, to_dk + key * g.dk.step(1),
              g.dk.step(0));
    write_row(dv + key * value_stride, static_cast<C>(g.dropout.scale), g.value_dim,
              to_dv + key * g.dv.step(1), g.dv.step(0));
  }
}

// Row `row` of the unit.
template <class T, class C>
TEGULA_INLINE void write_query(const AttentionGradArgs& g, const AttentionTask& task, int64_t row,
                               const C* dq) {
  const int64_t head = task.first_head + row / g.q_len, query = row % g.q_len;
  T* to = g.dq.at<T>(g.dq.lead_offset(task.batch, g.dq.rank - 3) + head * g.dq.step(2) +
                     query * g.dq.step(1));
  write_row(dq, static_cast<C>(g.scale), g.dim, to, g.dq.step(0));
}

template <class T, class F>
TEGULA_NOINLINE void note_deltas(GradContext<T, F>& c) {
  using C = typename F::Compute;
  for (int b = 0; b < c.block_count; ++b) {
    const Block<C>& block = c.w.blocks[b];
    if (block.sight.some.empty()) continue;
    if (!c.s.packed[b]) c.pack_rows(b);
    for (int64_t slot = block.slot; slot < block.slot + block.rows; ++slot) {
      if (c.w.hi[slot] <= c.w.lo[slot]) continue;
      const int64_t head = c.task.batch * c.a.heads + c.w.head[slot];
      static_cast<C*>(c.g.delta)[head * c.a.q_len + c.w.query[slot]] = c.s.delta[slot];
    }
  }
}

template <class T, class F>
void attention_backward_task(const AttentionGradArgs& g, const AttentionTask& task,
                             void* scratch) {
  using C = typename F::Compute;
  GradContext<T, F> c(g, task, scratch);
  const int64_t unit_rows = g.heads / g.key_heads * g.q_len;
  const bool all_rows = task.row_end - task.row_begin == unit_rows;
  const bool one_chunk = c.s.dq == c.s.dq_cell;
  const int64_t dim_stride = c.s.dim_stride, value_stride = c.s.value_stride;
  if (task.next_head >= 0) {
    const int64_t key_head = task.next_head / (g.heads / g.key_heads);
    c.look_ahead(g.dv, key_head), c.look_ahead(g.dk, key_head), c.look_ahead(g.dq, task.next_head);
    c.look_ahead(g.out, task.next_head), c.look_ahead(g.grad_out, task.next_head);
    c.look_ahead(g.v, key_head), c.look_ahead(g.k, key_head), c.look_ahead(g.q, task.next_head);
  }
  fill(c.s.dq, c.slots * dim_stride, C(0));
  if (!one_chunk) fill(c.s.dq_cell, c.slots * dim_stride, C(0));
  for (int64_t chunk = task.chunk_begin; chunk < task.chunk_end; ++chunk) {
    differentiate_chunk(c, chunk);
    if (!one_chunk) {
      for (int b = 0; b < c.block_count; ++b) {
        const Block<C>& block = c.w.blocks[b];
        if (intersect(block.sight.some, c.chunk_range()).empty()) continue;
        add_and_clear(c.s.dq + block.slot * dim_stride, c.s.dq_cell + block.slot * dim_stride,
                      block.width() * dim_stride);
      }
    }
    if (all_rows) {
      write_keys<T>(g, task, chunk, c.s.dk, c.s.dv);
    } else {
      C* to = static_cast<C*>(task.partial) + chunk * kGradientKeys * (dim_stride + value_stride);
      copy(c.s.dk, to, kGradientKeys * dim_stride);
      copy(c.s.dv, to + kGradientKeys * dim_stride, kGradientKeys * value_stride);
    }
  }
  if (g.delta != nullptr && task.chunk_begin == 0) note_deltas(c);
  for (int b = 0; b < c.block_count; ++b) {
    const Block<C>& block = c.w.blocks[b];
    const int64_t first = c.unit_row(block);
    for (int r = 0; r < block.rows; ++r) {
      const C* dq = c.s.dq + (block.slot + r) * dim_stride;
      if (all_rows && task.partial != nullptr) {
        copy(dq, static_cast<C*>(task.partial) + (first + r) * dim_stride, dim_stride);
      } else {
        write_query<T>(g, task, first + r, dq);
      }
    }
  }
}

template <class T, class F>
void attention_finish_queries(const AttentionGradArgs& g, const AttentionTask& task,
                              const char* partials, size_t step, int64_t count, char* total,
                              bool last) {
  using C = typename F::Compute;
  const int64_t stride = round_up(g.dim, kLanes<C>);
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    C* sum = reinterpret_cast<C*>(total) + row * stride;
    if (task.chunk_begin == 0) fill(sum, stride, C(0));
    for (int64_t i = 0; i < count; ++i) {
      const C* part = reinterpret_cast<const C*>(partials + step * static_cast<size_t>(i));
      for (int64_t d = 0; d < stride; d += kLanes<C>) {
        store(sum + d, load(sum + d) + load(part + row * stride + d));
      }
    }
    if (last) write_query<T>(g, task, row, sum);
  }
}

template <class T, class F>
void attention_finish_keys(const AttentionGradArgs& g, const AttentionTask& task,
                           const char* partials, size_t step, int64_t count) {
  using C = typename F::Compute;
  const int64_t dk_size = kGradientKeys * round_up(g.dim, kLanes<C>);
  const int64_t size = dk_size + kGradientKeys * round_up(g.value_dim, kLanes<C>);
  const int64_t offset = task.chunk_begin * size;
  // The first part becomes the sum.
  C* sum = reinterpret_cast<C*>(const_cast<char*>(partials)) + offset;
  for (int64_t i = 1; i < count; ++i) {
    const C* part = reinterpret_cast<const C*>(partials + step * static_cast<size_t>(i)) + offset;
    for (int64_t d = 0; d < size; d += kLanes<C>) store(sum + d, load(sum + d) + load(part + d));
  }
  write_keys<T>(g, task, task.chunk_begin, sum, sum + dk_size);
}

template <class F>
size_t gradient_scratch_bytes(const AttentionGradArgs& a, int64_t rows) {
  const Workspace<F> w(a, rows, Pass::kBackward, nullptr);
  return reinterpret_cast<size_t>(GradWorkspace<F>(a, w, rows, false).next);
}

template <class F>
size_t gradient_query_bytes(const AttentionGradArgs& a, int64_t rows) {
  using C = typename F::Compute;
  return static_cast<size_t>(rows * round_up(a.dim, kLanes<C>)) * sizeof(C);
}

template <class F>
size_t gradient_key_bytes(const AttentionGradArgs& a) {
  using C = typename F::Compute;
  const int64_t keys = round_up(a.k_len, kGradientKeys);
  return static_cast<size_t>(keys * (round_up(a.dim, kLanes<C>) + round_up(a.value_dim, kLanes<C>))) *
         sizeof(C);
}

}  // namespace
}  // namespace tegula
