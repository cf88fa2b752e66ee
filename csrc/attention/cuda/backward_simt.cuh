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
  C shift[kCount], rest[kCount], delta[kCount];
  SeenKeys seen[kCount];

  // Row i is row `first` + i `step` of the unit. Threads of the first kCount write their own;
  // others see it after a barrier.
  TEGULA_DEVICE void read(const AttentionGradArgs& a, const GradientRows& rows, const Unit& unit,
                          int64_t first, int64_t step) {
    const int i = threadIdx.x;
    if (i >= kCount) return;
    const int64_t row = first + i * step;
    q[i] = grad[i] = nullptr;
    shift[i] = -negative_infinity<C>(), rest[i] = delta[i] = 0;
    seen[i] = SeenKeys{};
    if (row >= unit.rows) return;
    const int64_t head = unit.head(row), query = unit.query(row);
    const int64_t at = (unit.batch * a.key_heads + unit.key_head) * rows.unit_rows + row;
    q[i] = slab_of<const T>(a.q, unit.batch).row(head, query);
    grad[i] = slab_of<const T>(a.grad_out, unit.batch).row(head, query);
    shift[i] = static_cast<const C*>(rows.shifts)[at];
    rest[i] = static_cast<const C*>(rows.rests)[at];
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

// Which pairs of a tile stand on the left, and what is wanted of them.
enum class Left { kRows, kKeys };
enum class Wanted {
  kSlopes,            // d loss / d product, but for the scale, in tiles.pairs
  kWeightsAndSlopes,  // weights as dropout leaves them there, slopes in the thread's own memory
  kBiasSlopes         // d loss / d bias in tiles.pairs
};

// A tile of pairs: rows `first_row` + r `row_step` of the unit, keys from `first_key` on.
struct PairTile {
  int64_t first_row, row_step;
  int first_key;
  bool mixed;  // some pair may be hidden
};

// Which pairs (i, j) of the thread dropout drops, a bit each.
template <Left kLeft, int kRows, bool kRich, class C>
TEGULA_DEVICE unsigned dropped_pairs(const Scores<C, kRich>& scores, const PairTile& tile) {
  if (!scores.drops()) return 0;
  const int thread = opaque(threadIdx.x);
  const int x = thread % kSimtSide * kRun, y = thread / kSimtSide * kRows;
  unsigned dropped = 0;
#pragma unroll 1
  for (int r = 0; r < (kLeft == Left::kRows ? kRows : kRun); ++r) {
    const int64_t row = tile.first_row + ((kLeft == Left::kRows ? y : x) + r) * tile.row_step;
    C kept[kLeft == Left::kRows ? kRun : kRows];
    scores.kept_run(row, tile.first_key + (kLeft == Left::kRows ? x : y), kept);
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof kept / sizeof *kept); ++k) {
      const unsigned bit = kLeft == Left::kRows ? pair_bit(r, k) : pair_bit(k, r);
      if (kept[k] == C(0)) dropped |= bit;
    }
  }
  return dropped;
}

// q k^T in tiles.pairs and `grads`, grad_out v^T, become what is wanted; hidden pairs hidden_pair.
// Pairs take turns: their code is long. Nobody has to wait for others before.
template <Left kLeft, Wanted kWanted, bool kRich, class T, int kRows, class C, int kCount>
TEGULA_DEVICE void differentiate(const Scores<C, kRich>& scores,
                                 const GradientTile<T, kCount>& rows, const PairTile& tile,
                                 SimtTiles<C, kRows>& tiles, const C (&grads)[kRows][kRun]) {
  const int thread = opaque(threadIdx.x);
  const int x = thread % kSimtSide * kRun, y = thread / kSimtSide * kRows;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    Quad<C> quad;
#pragma unroll
    for (int j = 0; j < kRun; ++j) quad.value[j] = grads[i][j];
    tiles.own_quad(i) = quad;
  }
  const unsigned dropped = dropped_pairs<kLeft, kRows>(scores, tile);
#pragma unroll 1
  for (int i = 0; i < kRows; ++i) {
    Quad<C> products = tiles.own_pairs(i), slopes = tiles.own_quad(i);
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const int r = kLeft == Left::kRows ? y + i : x + j;
      const int key = tile.first_key + (kLeft == Left::kRows ? x + j : y + i);
      const int64_t row = tile.first_row + r * tile.row_step;
      const C product = products.value[j];
      bool shown = !tile.mixed || rows.seen[r].sees(key);
      C score = 0;
      if (shown) {
        score = scores(product, row, key);
        shown = !tile.mixed || scores.shows(score, row, key);
      }
      const C weight = power_of_2((score - rows.shift[r]) - rows.rest[r]);
      const bool drop = dropped & pair_bit(i, j);
      const C grad = drop ? C(0) : slopes.value[j] * scores.keep_scale();
      C slope = weight * (grad - rows.delta[r]);
      if (kWanted != Wanted::kBiasSlopes) slope *= scores.slope(product);
      const C kept = drop ? C(0) : weight * scores.keep_scale();
      slopes.value[j] = shown ? visible_pair(slope) : hidden_pair<C>();
      products.value[j] = shown ? visible_pair(kept) : hidden_pair<C>();
    }
    if constexpr (kWanted == Wanted::kWeightsAndSlopes) {
      tiles.own_pairs(i) = products;
      tiles.own_quad(i) = slopes;
    } else {
      tiles.own_pairs(i) = slopes;
    }
  }
}

// Where a block of threads is. It lies in shared memory: what is the same for all threads and
// seldom asked for takes no registers.
template <class T>
struct BackwardBlock {
  Unit unit;
  int64_t index;   // of the unit
  int64_t number;  // of rows or keys within it
  int64_t column;
  const T *keys, *values;  // the first row of each
  SeenByAll all;           // of the block's rows

  // One thread calls it.
  TEGULA_DEVICE void find(const BackwardSimtParams& p) {
    const int64_t slab = blockIdx.x / p.blocks;
    number = blockIdx.x % p.blocks;
    index = slab / p.column_slabs;
    unit = unit_of(p.a, index);
    column = slab % p.column_slabs * kColumns;
    keys = slab_of<const T>(p.a.k, unit.batch).row(unit.key_head, 0);
    values = slab_of<const T>(p.a.v, unit.batch).row(unit.key_head, 0);
  }
};

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
    BackwardBlock<T> block;
    int64_t first_row;
    GradientTile<T, kCount> rows;
  };
  __shared__ alignas(16) unsigned char memory[sizeof(Memory)];
  auto& [tiles, block, first_row, rows] = *reinterpret_cast<Memory*>(memory);

  const AttentionGradArgs& a = p.a;
  if (threadIdx.x == 0) {
    block.find(p);
    // The last rows of a causal mask have the most keys: they go first.
    first_row = (p.blocks - 1 - block.number) * kCount;
    block.all = sight_of(p.rows, block.index, first_row, kCount);
  }
  __syncthreads();
  rows.read(a, p.rows, block.unit, first_row, 1);
  __syncthreads();
  const SeenByAll& all = block.all;
  const auto busy = [&] { return first_row + threadIdx.x / 32 * 2 * kRows < block.unit.rows; };

  C sums[kRows][2 * kRun] = {};
#pragma unroll 1
  for (int tile = all.lo / kRightRows; tile < parts_of(all.hi, kRightRows); ++tile) {
    const int begin = tile * kRightRows;
    const int count = min(static_cast<int>(a.k_len) - begin, kRightRows);
    if (all.hides(begin, begin + count)) continue;
    const bool mixed = (kRich && (a.dense || a.bias)) || count < kRightRows ||
                       !all.shows_all(begin, begin + count);
    C pairs[kRows][kRun];
    multiply_rows<T>(tiles, Operand{p.q, [&](int r) { return rows.q[r]; }},
                     rows_from(block.keys, p.k, begin, count), busy(), pairs);
    put_pairs(tiles, pairs);
    multiply_rows<T>(tiles, Operand{p.grad, [&](int r) { return rows.grad[r]; }},
                     rows_from(block.values, p.v, begin, count), busy(), pairs);
    const Scores<C, kRich> scores(a, block.unit);  // not kept: it takes registers
    differentiate<Left::kRows, Wanted::kSlopes>(scores, rows, {first_row, 1, begin, mixed}, tiles,
                                                pairs);
    __syncthreads();
    add_products<T>(tiles, rows_from(block.keys, p.k, begin, count), block.column, count, mixed,
                    busy(), sums);
  }

  const auto dq = slab_of<T>(a.dq, block.unit.batch);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = first_row + threadIdx.x / kSimtSide * kRows + i;
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
    BackwardBlock<T> block;
    GradientTile<T, kRightRows> rows;
  };
  __shared__ alignas(16) unsigned char memory[sizeof(Memory)];
  auto& [tiles, block, rows] = *reinterpret_cast<Memory*>(memory);

  const AttentionGradArgs& a = p.a;
  if (threadIdx.x == 0) block.find(p);
  __syncthreads();
  const int begin = static_cast<int>(block.number * kCount);
  const int count = static_cast<int>(min(a.k_len - begin, static_cast<int64_t>(kCount)));
  const bool busy = threadIdx.x / 32 * 2 * kRows < count;

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
    C pairs[kRows][kRun];
    multiply_rows<T>(tiles, rows_from(block.keys, p.k, begin, count), queries, busy, pairs);
    put_pairs(tiles, pairs);
    multiply_rows<T>(tiles, rows_from(block.values, p.v, begin, count), grads_of_out, busy, pairs);
    const Scores<C, kRich> scores(a, block.unit);
    differentiate<Left::kKeys, Wanted::kWeightsAndSlopes>(scores, rows, {tile, 1, begin, mixed},
                                                          tiles, pairs);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kRun; ++j) pairs[i][j] = tiles.own_quad(i).value[j];
    }
    __syncthreads();
    add_products<T>(tiles, grads_of_out, block.column, row_count, mixed, busy, value_sums);
    put_pairs(tiles, pairs);
    add_products<T>(tiles, queries, block.column, row_count, mixed, busy, key_sums);
  }

  const auto dk = slab_of<T>(a.dk, block.unit.batch), dv = slab_of<T>(a.dv, block.unit.batch);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = threadIdx.x / kSimtSide * kRows + i;
    if (r >= count) break;
    const int64_t key = static_cast<int64_t>(begin) + r;
    write_sums(dk.row(block.unit.key_head, key), p.dk, block.column, static_cast<C>(a.scale),
               key_sums[i]);
    write_sums(dv.row(block.unit.key_head, key), p.dv, block.column, C(1), value_sums[i]);
  }
}

}  // namespace tegula
