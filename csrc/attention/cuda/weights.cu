// The softmax weights themselves, for those who ask: 2^(score - lse), before dropout and 0 where a
// pair is hidden. Costs q k^T once more and Lq x Lk numbers of output.
#include "far_rows.cuh"
#include "forward_simt.cuh"
#include "weights_params.h"

namespace tegula {
namespace {

// Of each row: its log-sum-exp in units of log 2, in two parts (far_rows.cuh).
template <class C, int kCount>
struct RowShifts {
  C shift[kCount], rest[kCount];
};

// Warp after warp takes a row.
template <class T, int kCount, class Block>
TEGULA_DEVICE void read_shifts(const AttentionArgs& a, const Block& block,
                               RowShifts<Sum<T>, kCount>& shifts) {
  using C = Sum<T>;
  const auto log_sums = slab_of<const C>(a.lse, block.unit.batch);
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < kCount; i += kSimtThreads / 32) {
    const int64_t row = block.first_row + i;
    if (row >= block.unit.rows) break;
    const C lse = *log_sums.row(block.unit.head(row), block.unit.query(row));
    // A row that sees no score above -inf has a log-sum-exp of -inf.
    C shift = lse == negative_infinity<C>() ? -lse : in_log2(lse), rest = 0;
    if (is_far(shift)) split_shift<T, true>(a, block.unit, row, block.seen[i], shift, rest);
    if (threadIdx.x % 32 == 0) shifts.shift[i] = shift, shifts.rest[i] = rest;
  }
  __syncthreads();
}

template <class T, int kRows>
TEGULA_DEVICE void write_weights(const WeightsParams& params) {
  using C = Sum<T>;
  struct Memory {
    SimtTiles<C, kRows> tiles;
    ForwardBlock<T, kRows> block;
    RowShifts<C, kSimtSide * kRows> shifts;
  };
  __shared__ alignas(16) unsigned char memory[sizeof(Memory)];
  auto& [tiles, block, shifts] = *reinterpret_cast<Memory*>(memory);

  const ForwardSimtParams& p = params.forward;
  const AttentionArgs& a = p.a;
  block.find(p, true);
  block.read_rows(p);
  read_shifts<T>(a, block, shifts);
  const Scores<C, true> scores(a, block.unit);
  const auto weights = slab_of<T>(a.weights, block.unit.batch);
  const int x = threadIdx.x % kSimtSide, y = threadIdx.x / kSimtSide;

  const int64_t first_key = block.chunk * kKeyChunk;
  const int64_t end = min(first_key + kKeyChunk, a.k_len);
#pragma unroll 1
  for (int64_t tile = first_key; tile < end; tile += kRightRows) {
    const int count = static_cast<int>(min(end - tile, static_cast<int64_t>(kRightRows)));
    const bool seen = !block.all.hides(static_cast<int>(tile), static_cast<int>(tile + count));
    C pairs[kRows][kRun] = {};
    if (seen) {
      multiply_rows<T>(tiles, Operand{p.q, [&](int r) { return block.q[r]; }},
                       rows_from(block.keys, p.k, tile, count), block.busy(), pairs);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = block.row(i);
      if (row >= block.unit.rows) break;
      const C shift = shifts.shift[y * kRows + i], rest = shifts.rest[y * kRows + i];
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const int key = static_cast<int>(tile) + x * kRun + j;
        C weight = 0;
        if (seen && block.seen_by_row(i).sees(key)) {
          const C score = scores(pairs[i][j], row, key);
          if (scores.shows(score, row, key)) weight = power_of_2((score - shift) - rest);
        }
        pairs[i][j] = weight;
      }
      store_quad(weights.row(block.unit.head(row), block.unit.query(row)), tile + x * kRun,
                 params.weights, pairs[i]);
    }
  }
}

}  // namespace

#define TEGULA_WEIGHTS(T, name)                                           \
  extern "C" __global__ void __launch_bounds__(kSimtThreads, 2)           \
      attention_weights_##name(const __grid_constant__ WeightsParams p) { \
    write_weights<T, kManyRows<Sum<T>>>(p);                               \
  }

TEGULA_WEIGHTS(double, float64)
TEGULA_WEIGHTS(float, float32)
TEGULA_WEIGHTS(Half, float16)
TEGULA_WEIGHTS(BFloat16, bfloat16)

}  // namespace tegula
