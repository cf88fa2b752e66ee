// Attention without tensor cores: the forward pass of every float type and any head size.
//
// A block of threads has 16 kRows rows of a unit (rows.cuh) against tiles of 64 keys, and sums up
// to 128 value columns in registers. Larger values take more blocks, which compute the scores
// again. Cost per visible pair: D + Dv multiply-adds.
//
// Keys fold in chunks of kKeyChunk (fold.cuh). One block takes the chunks in turn and keeps what it
// has folded in memory of its own; or, where blocks are few, each chunk is a block, and
// finish_simt folds what they leave: the same bits.
#pragma once

#include "fold.cuh"
#include "forward_simt_params.h"
#include "simt_tile.cuh"

namespace tegula {

// A block's partial result in memory, where every number belongs to one thread.
template <class C, int kRows>
class Partial {
 public:
  TEGULA_DEVICE Partial(void* partials, int64_t block)
      : base_(static_cast<C*>(partials) + block * partial_numbers(kRows) + threadIdx.x) {}

  TEGULA_DEVICE C& sum(int i, int j) const { return at(i, j); }
  TEGULA_DEVICE RowSoftmax<C> softmax(int i) const {
    return {at(i, 2 * kRun), at(i, 2 * kRun + 1)};
  }
  TEGULA_DEVICE void set_softmax(int i, const RowSoftmax<C>& softmax) const {
    at(i, 2 * kRun) = softmax.best, at(i, 2 * kRun + 1) = softmax.sum;
  }

 private:
  TEGULA_DEVICE C& at(int i, int j) const { return base_[(i * (2 * kRun + 2) + j) * kSimtThreads]; }
  C* base_;
};

// The softmax of each thread's rows, in shared memory: needed once a tile, it leaves registers to
// the sums.
template <class C, int kRows>
class SharedSoftmax {
 public:
  TEGULA_DEVICE RowSoftmax<C>& operator[](int i) { return of_threads_[i][threadIdx.x]; }

 private:
  RowSoftmax<C> of_threads_[kRows][kSimtThreads];
};

// A thread's rows: what they have come to. Until `join`, the sum of weights is that of the thread's
// own keys.
template <class C, int kRows>
struct RowSums {
  SharedSoftmax<C, kRows>& softmax;
  C sums[kRows][2 * kRun];

  TEGULA_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      softmax[i] = RowSoftmax<C>::none();
#pragma unroll
      for (int j = 0; j < 2 * kRun; ++j) sums[i][j] = 0;
    }
  }
  TEGULA_DEVICE void join() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      softmax[i].sum = over_row(softmax[i].sum, [](C x, C y) { return rounded_sum(x, y); });
    }
  }
  TEGULA_DEVICE void load(const Partial<C, kRows>& partial) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      softmax[i] = partial.softmax(i);
#pragma unroll
      for (int j = 0; j < 2 * kRun; ++j) sums[i][j] = partial.sum(i, j);
    }
  }
};

// Which rows, columns and keys a block has. It lies in shared memory: what is the same for all
// threads and seldom asked for takes no registers.
template <class T, int kRows>
struct ForwardBlock {
  static constexpr int kCount = kSimtSide * kRows, kWarps = (kCount + 31) / 32;
  Unit unit;
  int64_t group, first_row, column;
  int chunk, chunk_end;    // of keys
  bool always_mixed;       // options may hide pairs of any tile
  const T *keys, *values;  // the first row of each
  SeenByAll all, warps[kWarps];
  SeenKeys seen[kCount];
  const T* q[kCount];  // null: no such row

  // All threads call it; all of them may read when it returns.
  TEGULA_DEVICE void find(const ForwardSimtParams& p, bool split) {
    if (threadIdx.x == 0) {
      group = split ? blockIdx.x / p.chunks : blockIdx.x;
      const int64_t slab = group / p.row_blocks;
      unit = unit_of(p.a, slab / p.column_slabs);
      // The last rows of a causal mask have the most keys: they go first.
      first_row = (p.row_blocks - 1 - group % p.row_blocks) * kCount;
      column = slab % p.column_slabs * kColumns;
      keys = slab_of<const T>(p.a.k, unit.batch).row(unit.key_head, 0);
      values = slab_of<const T>(p.a.v, unit.batch).row(unit.key_head, 0);
    }
    __syncthreads();
  }
  TEGULA_DEVICE void read_rows(const ForwardSimtParams& p) {
    const AttentionArgs& a = p.a;
    const int i = threadIdx.x;
    if (i < kWarps * 32) {
      const int64_t row = first_row + i;
      const bool exists = i < kCount && row < unit.rows;
      SeenKeys keys_of_row;
      if (exists) keys_of_row = seen_by(a, unit, row);
      const SeenByAll of_warp = seen_by_warp(keys_of_row, exists);
      if (i % 32 == 0) warps[i / 32] = of_warp;
      if (i < kCount) {
        seen[i] = keys_of_row;
        q[i] = exists ? slab_of<const T>(a.q, unit.batch).row(unit.head(row), unit.query(row))
                      : nullptr;
      }
    }
    __syncthreads();
    if (i == 0) {
      all = kWarps == 1 ? warps[0] : together(warps[0], warps[kWarps - 1]);
      constexpr int kChunk = static_cast<int>(kKeyChunk);
      chunk = p.split ? static_cast<int>(blockIdx.x % p.chunks) : all.lo / kChunk;
      chunk_end = p.split ? chunk + 1 : static_cast<int>(parts_of(all.hi, kKeyChunk));
      always_mixed = a.dense || a.bias || first_row + kCount > unit.rows;
    }
    __syncthreads();
  }

  // Of the thread's row i.
  TEGULA_DEVICE int64_t row(int i) const { return first_row + threadIdx.x / kSimtSide * kRows + i; }
  TEGULA_DEVICE const SeenKeys& seen_by_row(int i) const {
    return seen[threadIdx.x / kSimtSide * kRows + i];
  }
  // Some row of the thread's warp exists.
  TEGULA_DEVICE bool busy() const { return first_row + threadIdx.x / 32 * 2 * kRows < unit.rows; }
};

// Products become scores; returns which pairs are hidden, none unless `mixed`. Options take long
// code: it is written once, for pairs in shared memory.
template <bool kRich, class T, int kRows, class C>
TEGULA_DEVICE unsigned score_pairs(const Scores<C, kRich>& scores,
                                   const ForwardBlock<T, kRows>& block, int first_key, bool mixed,
                                   SimtTiles<C, kRows>& tiles, C (&pairs)[kRows][kRun]) {
  unsigned hidden = 0;
  if constexpr (kRich) {
    put_pairs(tiles, pairs);
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
      Quad<C> quad = tiles.own_pairs(i);
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const int key = first_key + j;
        bool shown = !mixed || block.seen_by_row(i).sees(key);
        if (shown) {
          quad.value[j] = scores(quad.value[j], block.row(i), key);
          shown = !mixed || scores.shows(quad.value[j], block.row(i), key);
        }
        if (!shown) hidden |= pair_bit(i, j);
      }
      tiles.own_pairs(i) = quad;
    }
    take_pairs(tiles, pairs);
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const int key = first_key + j;
        pairs[i][j] = scores(pairs[i][j], block.row(i), key);
        if (mixed && !block.seen_by_row(i).sees(key)) hidden |= pair_bit(i, j);
      }
    }
  }
  return hidden;
}

// Scores become weights relative to the running maximum, and what was summed relative to the old
// one follows.
template <int kRows, class C>
TEGULA_DEVICE void weigh_pairs(C (&pairs)[kRows][kRun], unsigned hidden, RowSums<C, kRows>& rows) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    C best = negative_infinity<C>();
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      if (!(hidden & pair_bit(i, j))) best = fmax(best, pairs[i][j]);
    }
    RowSoftmax<C>& softmax = rows.softmax[i];
    best = fmax(softmax.best, over_row(best, [](C x, C y) { return fmax(x, y); }));
    const C point = reference_point(best);
    const C rescale = power_of_2(rounded_sum(softmax.best, -point));
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const C weight = power_of_2(rounded_sum(pairs[i][j], -point));
      pairs[i][j] = hidden & pair_bit(i, j) ? hidden_pair<C>() : weight;
    }
    const C sum =
        rounded_sum(rounded_sum(pairs[i][0], pairs[i][1]), rounded_sum(pairs[i][2], pairs[i][3]));
    softmax = {best, fused(softmax.sum, rescale, sum)};
#pragma unroll
    for (int j = 0; j < 2 * kRun; ++j) {
      rows.sums[i][j] = rounded_product(rows.sums[i][j], rescale);
    }
  }
}

// Drops weights in tiles.pairs of the keys from `first_key` on.
template <class T, int kRows, class C>
TEGULA_DEVICE void drop_pairs(const Scores<C, true>& scores, const ForwardBlock<T, kRows>& block,
                              int first_key, SimtTiles<C, kRows>& tiles) {
#pragma unroll 1
  for (int i = 0; i < kRows; ++i) {
    C kept[kRun];
    scores.kept_run(block.row(i), first_key, kept);
    Quad<C> quad = tiles.own_pairs(i);
#pragma unroll
    for (int j = 0; j < kRun; ++j) quad.value[j] = rounded_product(quad.value[j], kept[j]);
    tiles.own_pairs(i) = quad;
  }
}

// Adds a part to a total that lies in memory, where `first` says that nothing does yet.
template <class C, int kRows>
TEGULA_DEVICE void fold_into(const Partial<C, kRows>& total, const RowSums<C, kRows>& part,
                             bool first) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    RowSoftmax<C> softmax = first ? RowSoftmax<C>::none() : total.softmax(i);
    FoldFactors<C> factors{1, 0};
    if (!part.softmax[i].empty()) factors = fold(softmax, part.softmax[i]);
    total.set_softmax(i, softmax);
#pragma unroll
    for (int j = 0; j < 2 * kRun; ++j) {
      total.sum(i, j) = factors(first ? C(0) : total.sum(i, j), part.sums[i][j]);
    }
  }
}

// In units of log 2; -inf for none.
template <class C>
TEGULA_DEVICE C sink_of(const AttentionArgs& a, int64_t head) {
  return a.sinks == nullptr ? negative_infinity<C>() : in_log2(static_cast<C>(a.sinks[head]));
}

// Out and log-sum-exp of the thread's rows.
template <class T, class C, int kRows>
TEGULA_DEVICE void write_rows(const ForwardSimtParams& p, const ForwardBlock<T, kRows>& block,
                              const RowSums<C, kRows>& rows) {
  const AttentionArgs& a = p.a;
  const auto out = slab_of<T>(a.out, block.unit.batch);
  // Where everything is dropped, values do not matter, whatever they are.
  const bool nothing = a.dropout.active() && a.dropout.scale == 0.0;
  const int x = threadIdx.x % kSimtSide;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = block.row(i);
    if (row >= block.unit.rows) break;
    const int64_t head = block.unit.head(row), query = block.unit.query(row);
    const RowResult<C> result = finish_row(rows.softmax[i], sink_of<C>(a, head));
    T* to = out.row(head, query);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      C quad[kRun];
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const C value = rounded_product(rows.sums[i][half * kRun + j], result.factor);
        quad[j] = nothing ? C(0) : value;
      }
      store_quad(to, block.column + half * kRightRows + x * kRun, p.out, quad);
    }
    if (a.lse && block.column == 0 && x == 0) {
      *slab_of<C>(a.lse, block.unit.batch).row(head, query) = result.lse;
    }
  }
}

template <class T, int kRows, bool kRich>
TEGULA_DEVICE void forward_simt(const ForwardSimtParams& p) {
  using C = Sum<T>;
  struct Memory {
    SimtTiles<C, kRows> tiles;
    SharedSoftmax<C, kRows> softmax;
    ForwardBlock<T, kRows> block;
  };
  __shared__ alignas(16) unsigned char memory[sizeof(Memory)];
  auto& [tiles, softmax, block] = *reinterpret_cast<Memory*>(memory);

  const AttentionArgs& a = p.a;
  block.find(p, p.split);
  block.read_rows(p);
  const SeenByAll& all = block.all;

  RowSums<C, kRows> rows{softmax};
  rows.clear();
  const Partial<C, kRows> partial(p.partials, blockIdx.x);
#pragma unroll 1
  for (int chunk = block.chunk; chunk < block.chunk_end; ++chunk) {
    const int first_key = chunk * static_cast<int>(kKeyChunk);
    const int end = min(static_cast<int>(kKeyChunk), all.hi - first_key);
#pragma unroll 1
    for (int at = max(0, all.lo / kRightRows * kRightRows - first_key); at < end;
         at += kRightRows) {
      const int tile = first_key + at;
      const int count = min(static_cast<int>(a.k_len) - tile, kRightRows);
      if (all.hides(tile, tile + count)) continue;
      const bool mixed = (kRich && block.always_mixed) || count < kRightRows ||
                         !all.shows_all(tile, tile + kRightRows);
      C pairs[kRows][kRun];
      multiply_rows<T>(tiles, Operand{p.q, [&](int r) { return block.q[r]; }},
                       rows_from(block.keys, p.k, tile, count), block.busy(), pairs);
      const Scores<C, kRich> scores(a, block.unit);  // not kept: it takes registers
      const int key = tile + static_cast<int>(threadIdx.x) % kSimtSide * kRun;
      weigh_pairs(pairs, score_pairs(scores, block, key, mixed, tiles, pairs), rows);
      put_pairs(tiles, pairs);
      if constexpr (kRich) {
        if (scores.drops()) drop_pairs(scores, block, key, tiles);
      }
      add_products<T>(tiles, rows_from(block.values, p.v, tile, count), block.column, count, mixed,
                      block.busy(), rows.sums);
    }
    rows.join();
    if (p.chunks > 1) {
      fold_into(partial, rows, chunk == block.chunk);
      rows.clear();
    }
  }
  if (p.split) return;
  if (p.chunks > 1 && block.chunk < block.chunk_end) rows.load(partial);
  write_rows<T>(p, block, rows);
}

// Folds the chunks of a group, each of which some block has computed.
template <class T, int kRows>
TEGULA_DEVICE void finish_simt(const ForwardSimtParams& p) {
  using C = Sum<T>;
  struct Memory {
    SharedSoftmax<C, kRows> softmax;
    ForwardBlock<T, kRows> block;
  };
  __shared__ alignas(16) unsigned char memory[sizeof(Memory)];
  auto& [softmax, block] = *reinterpret_cast<Memory*>(memory);
  block.find(p, false);
  RowSums<C, kRows> rows{softmax};
  rows.clear();
#pragma unroll 1
  for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
    const Partial<C, kRows> partial(p.partials, block.group * p.chunks + chunk);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const RowSoftmax<C> part = partial.softmax(i);
      if (part.empty()) continue;
      const FoldFactors<C> factors = fold(rows.softmax[i], part);
#pragma unroll
      for (int j = 0; j < 2 * kRun; ++j) {
        rows.sums[i][j] = factors(rows.sums[i][j], partial.sum(i, j));
      }
    }
  }
  write_rows<T>(p, block, rows);
}

// The kernels of a type for kRows rows a thread: two blocks on a processor, so that one computes
// while the other one reads.
#define TEGULA_FORWARD_SIMT(T, name, kRows)                                               \
  extern "C" __global__ void __launch_bounds__(kSimtThreads, 2)                           \
      attention_forward_simt_##name(const __grid_constant__ ForwardSimtParams p) {        \
    forward_simt<T, kRows, false>(p);                                                     \
  }                                                                                       \
  extern "C" __global__ void __launch_bounds__(kSimtThreads, 2)                           \
      attention_forward_simt_##name##_rich(const __grid_constant__ ForwardSimtParams p) { \
    forward_simt<T, kRows, true>(p);                                                      \
  }                                                                                       \
  extern "C" __global__ void __launch_bounds__(kSimtThreads)                              \
      attention_finish_simt_##name(const __grid_constant__ ForwardSimtParams p) {         \
    finish_simt<T, kRows>(p);                                                             \
  }

}  // namespace tegula
