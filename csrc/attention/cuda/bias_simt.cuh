// dbias without tensor cores: the slopes dS, summed over whatever bias repeats along.
//
// A block of threads owns a tile of queries and keys and sums over all batch entries and heads that
// share it, in order. Where dbias repeats along queries or keys, blocks leave sums of rows or
// columns of their tile in float64, since they add up what cancels, and finish_bias adds those in
// order. Cost per visible pair: D + Dv multiply-adds.
#pragma once

#include "backward_simt.cuh"

namespace tegula {

// Where a tile of pairs stands, in shared memory.
struct BiasBlock {
  Unit unit;
  int64_t owner, group, row_block, key_block;
  int64_t sharer, sharer_end;   // of the group
  int64_t first_row, row_step;  // of the unit's rows: those of one head
  SeenByAll warps[2];

  // Number of an entry of the leading axes of dbias, taken as one in C order: `index` counts those
  // axes along which it repeats, or the others.
  static TEGULA_DEVICE int64_t lead_of(const View& dbias, int64_t index, bool repeating) {
    int64_t lead = 0, count = 1;
#pragma unroll 1
    for (int axis = dbias.rank - 3; axis >= 0; --axis) {
      const int64_t size = dbias.shape[axis];
      if ((dbias.stride[axis] == 0) == repeating) {
        lead += index % size * count;
        index /= size;
      }
      count *= size;
    }
    return lead;
  }
  // The unit and rows of sharer `sharer` of the block's entry.
  TEGULA_DEVICE void enter(const BiasSimtParams& p, int64_t sharer, int rows) {
    const int64_t lead = lead_of(p.a.dbias, owner, false) + lead_of(p.a.dbias, sharer, true);
    const int64_t head = lead % p.a.heads, group = p.a.heads / p.a.key_heads;
    unit = unit_of(p.a, lead / p.a.heads * p.a.key_heads + head / group);
    first_row = row_block * rows * group + head % group;
    row_step = group;
  }
};

// Adds the slopes of one batch entry and head.
template <class T, int kRows, class Memory, class C>
TEGULA_DEVICE void add_slopes(const BiasSimtParams& p, Memory& memory, C (&sums)[kRows][kRun]) {
  auto& [tiles, block, rows] = memory;
  const AttentionGradArgs& a = p.a;
  constexpr int kCount = kSimtSide * kRows, kWarps = kCount / 32;
  rows.read(a, p.rows, block.unit, block.first_row, block.row_step);
  if (threadIdx.x < kCount) {
    const SeenByAll of_warp = seen_by_warp(rows.seen[threadIdx.x], true);
    if (threadIdx.x % 32 == 0) block.warps[threadIdx.x / 32] = of_warp;
  }
  __syncthreads();
  const SeenByAll all = kWarps == 1 ? block.warps[0] : together(block.warps[0], block.warps[1]);
  const int64_t first_key = block.key_block * kRightRows;
  const int begin = static_cast<int>(first_key);
  const int count = static_cast<int>(min(a.k_len - first_key, static_cast<int64_t>(kRightRows)));
  if (all.hides(begin, begin + count)) return;

  const auto keys = slab_of<const T>(a.k, block.unit.batch).row(block.unit.key_head, 0);
  const auto values = slab_of<const T>(a.v, block.unit.batch).row(block.unit.key_head, 0);
  C pairs[kRows][kRun];
  multiply_rows<T>(tiles, Operand{p.q, [&](int r) { return rows.q[r]; }},
                   rows_from(keys, p.k, first_key, count), true, pairs);
  put_pairs(tiles, pairs);
  multiply_rows<T>(tiles, Operand{p.grad, [&](int r) { return rows.grad[r]; }},
                   rows_from(values, p.v, first_key, count), true, pairs);
  const Scores<C, true> scores(a, block.unit);
  differentiate<Left::kRows, Wanted::kBiasSlopes>(
      scores, rows, {block.first_row, block.row_step, begin, true}, tiles, pairs);
  take_pairs(tiles, pairs);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kRun; ++j) sums[i][j] += pairs[i][j];
  }
}

// Where a block leaves its sums, which are those of entries of dbias from some on.
struct BiasPart {
  double* first;  // of p.partials
  int64_t parts;

  // Entries of an owner form a matrix, of one row or column where dbias repeats along those.
  TEGULA_DEVICE BiasPart(const BiasSimtParams& p, const BiasBlock& block, int rows)
      : parts(p.parts) {
    const bool along_rows = p.a.dbias.repeats(1), along_keys = p.a.dbias.repeats(0);
    const int64_t row = along_rows ? 0 : block.row_block * rows;
    const int64_t key = along_keys ? 0 : block.key_block * kRightRows;
    int64_t part = block.group;
    if (along_rows) part = part * p.row_blocks + block.row_block;
    if (along_keys) part = part * p.key_blocks + block.key_block;
    first =
        p.partials + ((block.owner * p.rows_of_owner + row) * p.keys_of_owner + key) * parts + part;
  }
  TEGULA_DEVICE void leave(int64_t entry, double sum) const { first[entry * parts] = sum; }
};

// The block's sums: of its rows, of its columns, of all, or of each pair. `columns` is memory that
// all threads have left.
template <int kRows, class C>
TEGULA_DEVICE void leave_sums(const BiasSimtParams& p, const BiasBlock& block,
                              double (&columns)[kSimtSide][kRightRows],
                              const C (&sums)[kRows][kRun]) {
  const BiasPart to(p, block, kSimtSide * kRows);
  const bool along_rows = p.a.dbias.repeats(1), along_keys = p.a.dbias.repeats(0);
  const int x = threadIdx.x % kSimtSide, y = threadIdx.x / kSimtSide;
  if (!along_rows) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = y * kRows + i;
      double sum = 0;
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        if (!along_keys) to.leave(row * p.keys_of_owner + x * kRun + j, sums[i][j]);
        sum += sums[i][j];
      }
      sum = over_row(sum, [](double a, double b) { return a + b; });
      if (along_keys && x == 0) to.leave(row, sum);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) sum += sums[i][j];
    columns[y][x * kRun + j] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kRightRows) {
    double sum = 0;
    for (int i = 0; i < kSimtSide; ++i) sum += columns[i][threadIdx.x];
    columns[0][threadIdx.x] = sum;
    if (!along_keys) to.leave(threadIdx.x, sum);
  }
  __syncthreads();
  if (along_keys && threadIdx.x == 0) {
    double sum = 0;
    for (int i = 0; i < kRightRows; ++i) sum += columns[0][i];
    to.leave(0, sum);
  }
}

TEGULA_DEVICE int64_t bias_offset(const View& dbias, int64_t lead, int64_t query, int64_t key) {
  return dbias.lead_offset(lead, dbias.rank - 2) + query * dbias.step(1) + key * dbias.step(0);
}

template <class T, int kRows>
TEGULA_DEVICE void backward_bias(const BiasSimtParams& p) {
  using C = Sum<T>;
  constexpr int kCount = kSimtSide * kRows;
  struct Memory {
    SimtTiles<C, kRows> tiles;
    BiasBlock block;
    GradientTile<T, kCount> rows;
  };
  __shared__ alignas(16) unsigned char bytes[sizeof(Memory)];
  auto& memory = *reinterpret_cast<Memory*>(bytes);
  BiasBlock& block = memory.block;
  if (threadIdx.x == 0) {
    int64_t rest = blockIdx.x;
    block.key_block = rest % p.key_blocks, rest /= p.key_blocks;
    block.row_block = rest % p.row_blocks, rest /= p.row_blocks;
    block.group = rest % p.groups, block.owner = rest / p.groups;
    block.sharer = block.group * p.group_sharers;
    block.sharer_end = min(block.sharer + p.group_sharers, p.sharers);
  }
  __syncthreads();

  C sums[kRows][kRun] = {};
#pragma unroll 1
  for (int64_t sharer = block.sharer; sharer < block.sharer_end; ++sharer) {
    if (threadIdx.x == 0) block.enter(p, sharer, kCount);
    __syncthreads();
    add_slopes<T>(p, memory, sums);
    __syncthreads();
  }

  if (p.partials != nullptr) {
    auto& columns = reinterpret_cast<double (&)[kSimtSide][kRightRows]>(memory.tiles.own);
    static_assert(sizeof columns <= sizeof memory.tiles.own);
    return leave_sums(p, block, columns, sums);
  }
  const View& dbias = p.a.dbias;
  const int64_t lead = BiasBlock::lead_of(dbias, block.owner, false);
  const int x = threadIdx.x % kSimtSide, y = threadIdx.x / kSimtSide;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t query = block.row_block * kCount + y * kRows + i;
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const int64_t key = block.key_block * kRightRows + x * kRun + j;
      if (query < p.a.q_len && key < p.a.k_len) {
        store_float(dbias, bias_offset(dbias, lead, query, key), sums[i][j]);
      }
    }
  }
}

// A thread has an entry of dbias, whose sum lies in parts.
TEGULA_DEVICE void finish_bias(const BiasSimtParams& p) {
  const int64_t entry = global_thread();
  if (entry >= p.owners * p.rows_of_owner * p.keys_of_owner) return;
  const int64_t key = entry % p.keys_of_owner, rest = entry / p.keys_of_owner;
  const int64_t query = rest % p.rows_of_owner;
  if (query >= p.a.q_len || key >= p.a.k_len) return;
  double sum = 0;
  for (int64_t i = 0; i < p.parts; ++i) sum += p.partials[entry * p.parts + i];
  const int64_t lead = BiasBlock::lead_of(p.a.dbias, rest / p.rows_of_owner, false);
  store_float(p.a.dbias, bias_offset(p.a.dbias, lead, query, key), sum);
}

// Blocks that a processor is to have at least, where options are computed in float64: more would
// take registers from the sums.
template <class T>
inline constexpr int kRichBlocks = sizeof(T) == 8 ? 1 : 2;

// The gradient kernels of a type. Sums of dk and dv take so many registers that a processor has one
// block of them.
#define TEGULA_BACKWARD_SIMT(T, name)                                                   \
  extern "C" __global__ void __launch_bounds__(kSimtThreads, 2)                         \
      attention_dq_simt_##name(const __grid_constant__ BackwardSimtParams p) {          \
    backward_dq<T, kManyRows<Sum<T>>, false>(p);                                        \
  }                                                                                     \
  extern "C" __global__ void __launch_bounds__(kSimtThreads, kRichBlocks<T>)            \
      attention_dq_simt_##name##_rich(const __grid_constant__ BackwardSimtParams p) {   \
    backward_dq<T, kManyRows<Sum<T>>, true>(p);                                         \
  }                                                                                     \
  extern "C" __global__ void __launch_bounds__(kSimtThreads, 1)                         \
      attention_dkdv_simt_##name(const __grid_constant__ BackwardSimtParams p) {        \
    backward_dkdv<T, kManyRows<Sum<T>>, false>(p);                                      \
  }                                                                                     \
  extern "C" __global__ void __launch_bounds__(kSimtThreads, 1)                         \
      attention_dkdv_simt_##name##_rich(const __grid_constant__ BackwardSimtParams p) { \
    backward_dkdv<T, kManyRows<Sum<T>>, true>(p);                                       \
  }                                                                                     \
  extern "C" __global__ void __launch_bounds__(kSimtThreads, kRichBlocks<T>)            \
      attention_dbias_simt_##name(const __grid_constant__ BiasSimtParams p) {           \
    backward_bias<T, kManyRows<Sum<T>>>(p);                                             \
  }                                                                                     \
  extern "C" __global__ void __launch_bounds__(kSimtThreads)                            \
      attention_finish_dbias_simt_##name(const __grid_constant__ BiasSimtParams p) {    \
    finish_bias(p);                                                                     \
  }

}  // namespace tegula
