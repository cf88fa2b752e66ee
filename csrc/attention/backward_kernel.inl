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
// pay for loading and storing what they add to. A cell has sums of its own, which are added to
// those of the unit afterwards: cells may be computed at once, and are added up in order.
#pragma once

#include "bias_slopes.inl"
#include "few_gradients.inl"

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
  gradient_tile<SumFormat<F>, kGradientRows<C>, 1, kRows, kVectors>(
      c.s.slopes + range.begin * kGradientRows<C> + column + row, keys + range.begin * stride + d,
      stride, range.end - range.begin, c.dq_sum + (block.slot + row) * stride + d, stride);
}

// A key that some row must not meet holds NaN or infinity: row by row, with a copy of the
// keys in which those are zeros.
template <class T, class F>
TEGULA_NOINLINE void add_queries_carefully(GradContext<T, F>& c,
                                           const Block<typename F::Compute>& block, int column) {
  const int64_t stride = c.s.dim_stride;
  const auto* keys = c.s.key_rows + c.tile_key() * stride;
  for (int row = 0; row < block.rows; ++row) {
    const KeyRange range = row_in_tile(c, block, row);
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

// Groups of kRows rows, from the row `begin` of the block up to `end`.
template <int kRows, class T, class F>
TEGULA_NOINLINE void add_query_rows(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                    int begin, int end, int column) {
  using C = typename F::Compute;
  const int64_t stride = c.s.dim_stride;
  const C* keys = c.s.key_rows + c.tile_key() * stride;
  // A panel of the keys stays in the first cache while all rows pass over it.
  for_panels<kValueVectors<kRows>>(0, stride / kLanes<C>, [&](int64_t first, auto vectors) {
    for (int row = begin; row < end; row += kRows) {
      const KeyRange range = c.tile.local(block.groups[row / kGroup<C>]);
      if (range.empty()) continue;
      add_query_panel<kRows, vectors.value>(c, block, row, column, range, first, keys);
    }
  });
}

template <class T, class F>
TEGULA_NOINLINE void add_queries(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                 int column, bool whole) {
  if (!whole && !c.s.tile_finite[c.tile_key() / kGradientTile]) {
    return add_queries_carefully(c, block, column);
  }
  // A last group of few rows is not filled up.
  constexpr int kRows = kGroup<typename F::Compute>;
  const int last = block.rows % kRows;
  const int end = last <= kRows / 2 ? block.rows - last : block.rows;
  add_query_rows<kRows>(c, block, 0, end, column);
  if (end == block.rows) return;
  last == 1 ? add_query_rows<1>(c, block, end, block.rows, column)
            : add_query_rows<kRows / 2>(c, block, end, block.rows, column);
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
  return {first * kN, static_cast<int>(smaller(last * kN, group.rows_end))};
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
  gradient_tile<SumFormat<F>, 1, kGradientRows<C>, kKeys, kVectors>(
      sum.weights + key * kGradientRows<C> + columns.begin, rows + columns.begin * sum.stride + d,
      sum.stride, columns.end - columns.begin, sum.sums + key * sum.stride + d, sum.stride);
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
TEGULA_NOINLINE void differentiate_group(GradContext<T, F>& c, Group<typename F::Compute>& group) {
  using C = typename F::Compute;
  bool seen = false;
  group.mixed = false;
  for (KeyRange& range : group.ranges) range = {0, 0};
  if (!group.finite) __builtin_memset(c.s.hidden, 1, kGradientTile * kGradientRows<C>);
  for (int b = group.first; b < group.first + group.blocks; ++b) {
    const Block<C>* block_in_tile = in_tile(c, c.w.blocks[b]);
    if (block_in_tile == nullptr) {
      group.mixed = true;
      continue;
    }
    const Block<C>& block = *block_in_tile;
    seen = true;
    const int column = group.column_of(block);
    const bool whole = differentiate_block(c, group, block, c.a.softcap > 0);
    group.mixed |= !whole;
    if (!group.finite) note_hidden(c, block, column, whole);
    if (c.g.units_add_bias) add_bias(c, group, block, column);
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
       c.dv_sum + c.tile_key() * value_stride},
      {c.s.slopes, c.s.query_rows + group.slot * stride, stride, c.dk_sum + c.tile_key() * stride}};
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
    group.rows_end = group.columns + c.w.blocks[b].rows;
    group.columns += width;
    group.finite &= c.s.finite[b];
    ++group.blocks;
  }
  return group;
}

// The blocks of a cell that see some of its keys lie between these two.
struct BlockRange {
  int first, end;
};

// Blocks that see nothing of the chunk only separate others; those at the ends drop out.
template <class T, class F>
TEGULA_INLINE BlockRange seen_blocks(GradContext<T, F>& c, BlockRange range) {
  while (range.first < range.end && !c.sees_chunk(c.w.blocks[range.first])) ++range.first;
  while (range.end > range.first && !c.sees_chunk(c.w.blocks[range.end - 1])) --range.end;
  return range;
}

// What the blocks see of the chunk, counted from its first key, in whole steps.
template <class T, class F>
TEGULA_INLINE KeyRange cell_keys(GradContext<T, F>& c, BlockRange range) {
  KeyRange keys{kNever, -1};
  for (int b = range.first; b < range.end; ++b) widen(keys, c.w.blocks[b].sight.some);
  keys = intersect(keys, c.chunk_range());
  return c.in_steps({keys.begin - c.chunk_begin, keys.end - c.chunk_begin});
}

// Blocks of one row chunk, packed, against the chunk of keys. The sums begin with zeros,
// except where this is the only cell that adds to them.
template <class T, class F>
TEGULA_NOINLINE void differentiate_cell(GradContext<T, F>& c, BlockRange range) {
  if (range.first == range.end) return;
  const auto& s = c.s;
  const KeyRange keys = cell_keys(c, range);
  const int64_t slot = c.w.blocks[range.first].slot;
  c.dq_sum = s.dq, c.dk_sum = s.dk, c.dv_sum = s.dv;
  if (!c.only_keys) {
    const auto& last = c.w.blocks[range.end - 1];
    fill(s.dq_cell, (last.slot + last.width() - slot) * s.dim_stride, typename F::Compute(0));
    c.dq_sum = s.dq_cell - slot * s.dim_stride;
  }
  if (!c.only_rows) {
    c.fill_keys(s.dk_cell, s.dim_stride, 0, keys);
    c.fill_keys(s.dv_cell, s.value_stride, 0, keys);
    c.dk_sum = s.dk_cell - c.chunk_place * s.dim_stride;
    c.dv_sum = s.dv_cell - c.chunk_place * s.value_stride;
  }
  while (range.first < range.end) {
    Group<typename F::Compute> group = group_from(c, range.first, range.end);
    for (int32_t begin = keys.begin / kGradientTile * kGradientTile;
         begin < smaller(keys.end, c.chunk_count); begin += kGradientTile) {
      c.enter_chunk_tile(begin);
      differentiate_group(c, group);
    }
    range.first += group.blocks;
  }
}

// Adds the cell's sums to those of the unit.
template <class T, class F>
TEGULA_NOINLINE void fold_cell(GradContext<T, F>& c, BlockRange range) {
  if (range.first == range.end) return;
  const auto& s = c.s;
  if (!c.only_keys) {
    const auto &first = c.w.blocks[range.first], &last = c.w.blocks[range.end - 1];
    add(s.dq + first.slot * s.dim_stride, s.dq_cell,
        (last.slot + last.width() - first.slot) * s.dim_stride);
  }
  if (!c.only_rows) {
    const KeyRange keys = cell_keys(c, range);
    const auto add_cell = [&](typename F::Compute* sums, const typename F::Compute* cell,
                              int64_t stride) {
      add(sums + (c.chunk_place + keys.begin) * stride, cell + keys.begin * stride,
          (keys.end - keys.begin) * stride);
    };
    add_cell(s.dk, s.dk_cell, s.dim_stride);
    add_cell(s.dv, s.dv_cell, s.value_stride);
  }
}

// ---- results ----

template <class T, class F>
TEGULA_NOINLINE void write_chunk(GradContext<T, F>& c) {
  const AttentionGradArgs& g = c.g;
  const auto write = [&](const View& view, const auto* sums, int64_t stride, double factor) {
    T* to = c.row_of_key(view, c.chunk_begin);
    for (int64_t key = c.chunk_keys.begin; key < c.chunk_keys.end; ++key) {
      write_row(sums + (c.chunk_place + key) * stride, static_cast<typename F::Compute>(factor),
                view.size(0), to + key * view.step(1), view.step(0));
    }
  };
  write(g.dk, c.s.dk, c.s.dim_stride, g.scale);
  write(g.dv, c.s.dv, c.s.value_stride, g.dropout.scale);
}

template <class T, class F>
TEGULA_NOINLINE void write_queries(GradContext<T, F>& c, int first, int end) {
  using C = typename F::Compute;
  const View& dq = c.g.dq;
  for (int b = first; b < end; ++b) {
    const Block<C>& block = c.w.blocks[b];
    for (int64_t slot = block.slot; slot < block.slot + block.rows; ++slot) {
      write_row(c.s.dq + slot * c.s.dim_stride, static_cast<C>(c.a.scale), c.a.dim,
                dq.at<T>(c.batch_offset(dq) + c.row_offset(dq, slot)), dq.step(0));
    }
  }
}

// delta of the rows that see a key, for those who sum over it.
template <class T, class F>
TEGULA_NOINLINE void note_deltas(GradContext<T, F>& c, int first, int end) {
  using C = typename F::Compute;
  for (int b = first; b < end; ++b) {
    const Block<C>& block = c.w.blocks[b];
    if (block.sight.some.empty()) continue;
    for (int64_t slot = block.slot; slot < block.slot + block.rows; ++slot) {
      if (c.w.hi[slot] <= c.w.lo[slot]) continue;
      const int64_t head = c.task.batch * c.a.heads + c.w.head[slot];
      C& delta = static_cast<C*>(c.g.delta)[head * c.a.q_len + c.w.query[slot]];
      delta = c.s.delta[slot];
      if (!c.s.split[slot]) continue;
      // The share of a sink is counted with the log-sum-exp that was given.
      const double given =
          c.a.lse.template at<C>(c.batch_offset(c.a.lse))[c.row_offset(c.a.lse, slot)];
      const double exact = (static_cast<double>(c.s.shift[slot]) + c.s.shift_rest[slot]);
      delta *= static_cast<C>(__builtin_exp(given - exact * c.to_natural));
    }
  }
}

// ---- a unit by one task ----

template <class T, class F>
void attention_backward_unit(const AttentionGradArgs& g, const AttentionTask& task, void* memory) {
  GradContext<T, F> c(g, task, memory, nullptr);
  c.begin();
  if (task.next != nullptr) {
    const int64_t head = task.next->first_head, key_head = head / (g.heads / g.key_heads);
    c.look_ahead(g.dv, key_head, 0, g.k_len), c.look_ahead(g.dk, key_head, 0, g.k_len);
    c.look_ahead(g.dq, head, 0, g.q_len), c.look_ahead(g.out, head, 0, g.q_len);
    c.look_ahead(g.grad_out, head, 0, g.q_len), c.look_ahead(g.v, key_head, 0, g.k_len);
    c.look_ahead(g.k, key_head, 0, g.k_len), c.look_ahead(g.q, head, 0, g.q_len);
  }
  const auto pack = [&](int b) {
    if (!c.s.packed[b]) c.pack_rows(b);
  };
  if (takes_few_rows(c)) {
    differentiate_few_rows(c);
  } else {
    for_chunks(c, [&] {
      c.pack_chunk();
      for (int i = 0; i < c.row_chunk_count; ++i) {
        const auto& rows = c.s.row_chunks[i];
        if (intersect(rows.sight, c.chunk_range()).empty()) continue;
        const BlockRange seen = seen_blocks(c, {rows.first, rows.end});
        for (int b = seen.first; b < seen.end; ++b) pack(b);
        differentiate_cell(c, seen);
        fold_cell(c, seen);
      }
      write_chunk(c);
    });
  }
  if (g.delta != nullptr) {
    for (int b = 0; b < c.block_count; ++b) {
      if (!c.w.blocks[b].sight.some.empty()) pack(b);
    }
    note_deltas(c, 0, c.block_count);
  }
  write_queries(c, 0, c.block_count);
}

// ---- a unit by many tasks ----

template <class T, class F>
void attention_backward_begin(const AttentionGradArgs& g, const AttentionTask& task, void* memory,
                              void* scratch) {
  GradContext<T, F>(g, task, memory, scratch).begin();
}

template <class T, class F>
void attention_backward_step(const AttentionGradArgs& g, const AttentionTask& task, GradStep step,
                             int64_t row_chunk, int64_t key_chunk, void* memory, void* scratch) {
  GradContext<T, F> c(g, task, memory, scratch);
  if (key_chunk >= 0) c.enter_chunk(key_chunk);
  BlockRange rows{0, 0};
  if (row_chunk >= 0) rows = {c.s.row_chunks[row_chunk].first, c.s.row_chunks[row_chunk].end};
  switch (step) {
    case GradStep::kPackRows:
      for (int b = rows.first; b < rows.end; ++b) c.pack_rows(b);
      if (g.delta != nullptr) note_deltas(c, rows.first, rows.end);
      break;
    case GradStep::kPackKeys: c.pack_chunk(); break;
    case GradStep::kCell: differentiate_cell(c, seen_blocks(c, rows)); break;
    case GradStep::kFold: fold_cell(c, seen_blocks(c, rows)); break;
    case GradStep::kWriteRows: write_queries(c, rows.first, rows.end); break;
    case GradStep::kWriteKeys: write_chunk(c); break;
  }
}

template <class F>
size_t gradient_unit_bytes(const AttentionGradArgs& a, int64_t rows) {
  Workspace<F> w(a, rows, Pass::kBackward, nullptr);
  GradWorkspace<F> s(a, w, rows, kGradientKeys);
  w.next = s.next;
  w.take_tile(Pass::kBackward);
  s.next = w.next;
  s.take_cell(a);
  return reinterpret_cast<size_t>(s.next);
}

// Memory of a unit that many tasks share, and of each of them.
template <class F>
GradBytes gradient_shared_bytes(const AttentionGradArgs& a, int64_t rows, int64_t key_chunks) {
  const Workspace<F> w(a, rows, Pass::kBackward, nullptr);
  GradWorkspace<F> s(a, w, rows, key_chunks * kGradientKeys);
  const size_t unit = reinterpret_cast<size_t>(s.next);
  Workspace<F> tile = w;
  tile.next = nullptr;
  tile.take_tile(Pass::kBackward);
  s.next = tile.next;
  s.take_cell(a);
  return {unit, reinterpret_cast<size_t>(s.next)};
}

}  // namespace
}  // namespace tegula
