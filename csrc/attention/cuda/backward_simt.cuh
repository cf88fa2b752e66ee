// Gradients of attention without tensor cores, of every float type and any head size: the formulas
// of backward.h.
//
// dq: a block of threads has rows of a unit (rows.cuh) and goes through tiles of 64 keys. dk, dv:
// it has keys and goes through tiles of 64 rows, of all heads that share them. Either sums up to
// 128 columns in registers; larger heads take more blocks, which compute weights and slopes again.
// All sums run in the order of keys or rows: the same bits in every run. Cost per visible pair: 2 D
// + Dv multiply-adds for dq, 2 (D + Dv) for dk and dv.
#pragma once

#include "backward_simt_params.h"
#include "scores.cuh"
#include "simt_tile.cuh"

namespace tegula {

// Rows of a unit, in shared memory. Those that do not exist see nothing.
template <class T, int kCount>
struct GradientTile {
  using C = Sum<T>;
  const T *q[kCount], *grad[kCount];  // null: no such row
  C shift[kCount], delta[kCount];
  SeenKeys seen[kCount];

  // Row i is row `first` + i `step` of the unit. Threads of the first kCount write their own;
  // others see it after a barrier.
  TEGULA_DEVICE void read(const AttentionGradArgs& a, const GradientRows& rows, const Unit& unit,
                          int64_t first, int64_t step) {
    const int i = threadIdx.x;
    if (i >= kCount) return;
    const int64_t row = first + i * step;
    q[i] = grad[i] = nullptr;
    shift[i] = -negative_infinity<C>(), delta[i] = 0;
    seen[i] = SeenKeys{};
    if (row >= unit.rows) return;
    const int64_t head = unit.head(row), query = unit.query(row);
    const int64_t at = (unit.batch * a.key_heads + unit.key_head) * rows.unit_rows + row;
    q[i] = slab_of<const T>(a.q, unit.batch).row(head, query);
    grad[i] = slab_of<const T>(a.grad_out, unit.batch).row(head, query);
    shift[i] = static_cast<const C*>(rows.shifts)[at];
    delta[i] = static_cast<const C*>(rows.deltas)[at];
    seen[i] = rows.seen[at];
  }
};

// What `rows` rows from `first` on see, a multiple of kSightRows; read from memory. Where some do
// not exist, not all see anything.
TEGULA_DEVICE SeenByAll sight_of(const GradientRows& rows, int64_t unit, int64_t first, int count) {
  const int64_t at = first / kSightRows;
  SeenByAll all = rows.sights[unit * rows.blocks() + at];
  for (int i = 1; i < count / kSightRows; ++i) {
    if (at + i < rows.blocks()) {
      all = together(all, rows.sights[unit * rows.blocks() + at + i]);
    } else {
      all.full_lo = 1, all.full_hi = 0;
    }
  }
  return all;
}

// A pair's weight as dropout leaves it, and its slope dS; both are hidden_pair where it is.
template <class C>
struct PairGradient {
  C weight, slope;
};

// `product` is q k^T, `grad_product` grad_out v^T; `kept` the pair's dropout factor. `mixed`: it
// may be hidden.
template <bool kRich, class C>
TEGULA_DEVICE PairGradient<C> differentiate(const Scores<C, kRich>& scores, C product,
                                            C grad_product, C kept, C shift, C delta,
                                            const SeenKeys& seen, int64_t row, int key,
                                            bool mixed) {
  constexpr PairGradient<C> kHidden{-C(0), -C(0)};
  if (mixed && !seen.sees(key)) return kHidden;
  const C score = scores(product, row, key);
  if (kRich && mixed && !scores.shows(score, row, key)) return kHidden;
  const C weight = power_of_2(score - shift);
  const C grad = kept == C(0) ? C(0) : grad_product * kept;
  return {visible_pair(weight * kept), visible_pair(weight * (grad - delta))};
}

// The tile's numbers that the thread itself has put.
template <int kRows, class C>
TEGULA_DEVICE void take_pairs(const SimtTiles<C, kRows>& tiles, C (&pairs)[kRows][kRun]) {
  const int x = threadIdx.x % kSimtSide, y = threadIdx.x / kSimtSide;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const auto quad = *reinterpret_cast<const Quad<C>*>(&tiles.pairs[y * kRows + i][x * kRun]);
#pragma unroll
    for (int j = 0; j < kRun; ++j) pairs[i][j] = quad.value[j];
  }
}

// Where a block of threads is, in shared memory.
struct BackwardBlock {
  Unit unit;
  int64_t index;   // of the unit
  int64_t number;  // of rows or keys within it
  int64_t column;

  // All threads call it; all of them may read when it returns.
  TEGULA_DEVICE void find(const BackwardSimtParams& p) {
    if (threadIdx.x == 0) {
      const int64_t slab = blockIdx.x / p.blocks;
      number = blockIdx.x % p.blocks;
      index = slab / p.column_slabs;
      unit = unit_of(p.a, index);
      column = slab % p.column_slabs * kColumns;
    }
    __syncthreads();
  }
};

// `count` rows of a view from row `first` on.
template <class T>
TEGULA_DEVICE auto rows_from(const T* row, const RowSteps& steps, int64_t first, int count) {
  row += first * steps.row;
  return Operand{steps, [=, &steps](int r) { return r < count ? row + r * steps.row : nullptr; }};
}

// Columns [column, column + kColumns) of a row, times `factor`.
template <class T, class C>
TEGULA_DEVICE void write_sums(T* row, const RowSteps& steps, int64_t column, C factor,
                              const C (&sums)[2 * kRun]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    C quad[kRun];
#pragma unroll
    for (int j = 0; j < kRun; ++j) quad[j] = sums[half * kRun + j] * factor;
    store_quad(row, column + half * kRightRows + threadIdx.x % kSimtSide * kRun, steps, quad);
  }
}

template <class T, int kRows, bool kRich>
TEGULA_DEVICE void backward_dq(const BackwardSimtParams& p) {
  using C = Sum<T>;
  constexpr int kCount = kSimtSide * kRows;
  struct Memory {
    SimtTiles<C, kRows> tiles;
    BackwardBlock block;
    GradientTile<T, kCount> rows;
  };
  __shared__ alignas(16) unsigned char memory[sizeof(Memory)];
  auto& [tiles, block, rows] = *reinterpret_cast<Memory*>(memory);

  const AttentionGradArgs& a = p.a;
  block.find(p);
  // The last rows of a causal mask have the most keys: they go first.
  const int64_t first_row = (p.blocks - 1 - block.number) * kCount;
  rows.read(a, p.rows, block.unit, first_row, 1);
  const SeenByAll all = sight_of(p.rows, block.index, first_row, kCount);
  __syncthreads();
  const Scores<C, kRich> scores(a, block.unit);
  const int x = threadIdx.x % kSimtSide, y = threadIdx.x / kSimtSide;
  const bool busy = first_row + threadIdx.x / 32 * 2 * kRows < block.unit.rows;
  const T* const keys = slab_of<const T>(a.k, block.unit.batch).row(block.unit.key_head, 0);
  const T* const values = slab_of<const T>(a.v, block.unit.batch).row(block.unit.key_head, 0);

  C sums[kRows][2 * kRun] = {};
#pragma unroll 1
  for (int64_t tile = all.lo / kRightRows * kRightRows; tile < all.hi; tile += kRightRows) {
    const int begin = static_cast<int>(tile);
    const int count = static_cast<int>(min(a.k_len - tile, static_cast<int64_t>(kRightRows)));
    if (all.hides(begin, begin + count)) continue;
    const bool mixed = (kRich && (a.dense || a.bias)) || count < kRightRows ||
                       !all.shows_all(begin, begin + count);
    C pairs[kRows][kRun], grads[kRows][kRun];
    multiply_rows<T>(tiles, Operand{p.q, [&](int r) { return rows.q[r]; }},
                     rows_from(keys, p.k, tile, count), busy, pairs);
    put_pairs(tiles, pairs);
    multiply_rows<T>(tiles, Operand{p.grad, [&](int r) { return rows.grad[r]; }},
                     rows_from(values, p.v, tile, count), busy, grads);
    take_pairs(tiles, pairs);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = y * kRows + i;
      C kept[kRun];
      scores.kept_run(first_row + r, begin + x * kRun, kept);
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const C slope =
            differentiate(scores, pairs[i][j], grads[i][j], kept[j], rows.shift[r], rows.delta[r],
                          rows.seen[r], first_row + r, begin + x * kRun + j, mixed)
                .slope;
        pairs[i][j] =
            is_hidden_pair(slope) ? slope : visible_pair(slope * scores.slope(pairs[i][j]));
      }
    }
    put_pairs(tiles, pairs);
    add_products<T>(tiles, rows_from(keys, p.k, tile, count), block.column, count, mixed, busy,
                    sums);
  }

  const auto dq = slab_of<T>(a.dq, block.unit.batch);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = first_row + y * kRows + i;
    if (row >= block.unit.rows) break;
    write_sums(dq.row(block.unit.head(row), block.unit.query(row)), p.dq, block.column,
               static_cast<C>(a.scale), sums[i]);
  }
}

template <class T, int kRows, bool kRich>
TEGULA_DEVICE void backward_dkdv(const BackwardSimtParams& p) {
  using C = Sum<T>;
  constexpr int kCount = kSimtSide * kRows;
  struct Memory {
    SimtTiles<C, kRows> tiles;
    BackwardBlock block;
    GradientTile<T, kRightRows> rows;
  };
  __shared__ alignas(16) unsigned char memory[sizeof(Memory)];
  auto& [tiles, block, rows] = *reinterpret_cast<Memory*>(memory);

  const AttentionGradArgs& a = p.a;
  block.find(p);
  const int64_t first_key = block.number * kCount;
  const int begin = static_cast<int>(first_key);
  const int count = static_cast<int>(min(a.k_len - first_key, static_cast<int64_t>(kCount)));
  const Scores<C, kRich> scores(a, block.unit);
  const int x = threadIdx.x % kSimtSide, y = threadIdx.x / kSimtSide;
  const bool busy = threadIdx.x / 32 * 2 * kRows < count;
  const T* const keys = slab_of<const T>(a.k, block.unit.batch).row(block.unit.key_head, 0);
  const T* const values = slab_of<const T>(a.v, block.unit.batch).row(block.unit.key_head, 0);

  C key_sums[kRows][2 * kRun] = {}, value_sums[kRows][2 * kRun] = {};
#pragma unroll 1
  for (int64_t tile = 0; tile < block.unit.rows; tile += kRightRows) {
    const SeenByAll all = sight_of(p.rows, block.index, tile, kRightRows);
    if (all.hides(begin, begin + count)) continue;
    const bool mixed =
        (kRich && (a.dense || a.bias)) || count < kCount || !all.shows_all(begin, begin + count);
    const int row_count =
        static_cast<int>(min(block.unit.rows - tile, static_cast<int64_t>(kRightRows)));
    rows.read(a, p.rows, block.unit, tile, 1);
    __syncthreads();
    const Operand queries{p.q, [&](int r) { return rows.q[r]; }};
    const Operand grads_of_out{p.grad, [&](int r) { return rows.grad[r]; }};
    C pairs[kRows][kRun], grads[kRows][kRun];
    multiply_rows<T>(tiles, rows_from(keys, p.k, first_key, count), queries, busy, pairs);
    put_pairs(tiles, pairs);
    multiply_rows<T>(tiles, rows_from(values, p.v, first_key, count), grads_of_out, busy, grads);
    take_pairs(tiles, pairs);
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const int r = x * kRun + j;
      C kept[kRows];
      scores.kept_run(tile + r, begin + y * kRows, kept);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const PairGradient<C> pair =
            differentiate(scores, pairs[i][j], grads[i][j], kept[i], rows.shift[r], rows.delta[r],
                          rows.seen[r], tile + r, begin + y * kRows + i, mixed);
        grads[i][j] = is_hidden_pair(pair.slope)
                          ? pair.slope
                          : visible_pair(pair.slope * scores.slope(pairs[i][j]));
        pairs[i][j] = pair.weight;
      }
    }
    put_pairs(tiles, pairs);
    add_products<T>(tiles, grads_of_out, block.column, row_count, mixed, busy, value_sums);
    put_pairs(tiles, grads);
    add_products<T>(tiles, queries, block.column, row_count, mixed, busy, key_sums);
  }

  const auto dk = slab_of<T>(a.dk, block.unit.batch), dv = slab_of<T>(a.dv, block.unit.batch);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (y * kRows + i >= count) break;
    const int64_t key = first_key + y * kRows + i;
    write_sums(dk.row(block.unit.key_head, key), p.dk, block.column, static_cast<C>(a.scale),
               key_sums[i]);
    write_sums(dv.row(block.unit.key_head, key), p.dv, block.column, C(1), value_sums[i]);
  }
}

}  // namespace tegula
