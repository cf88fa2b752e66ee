// The softmax weights themselves, for those who ask: before dropout, and 0 where a pair is hidden.
//
// A block of threads goes through the keys of its rows twice: for the rows' maxima and sums, as the
// forward pass does, since a log-sum-exp in one number is too coarse for weights; and to write.
// Costs q k^T twice and Lq x Lk numbers of output.
#include "forward_simt.cuh"
#include "weights_params.h"

namespace tegula {
namespace {

template <class T, int kRows>
TEGULA_DEVICE void write_weights(const WeightsParams& params) {
  using C = Sum<T>;
  struct Memory {
    SimtTiles<C, kRows> tiles;
    SharedSoftmax<C, kRows> softmax;
    ForwardBlock<T, kRows> block;
  };
  __shared__ alignas(16) unsigned char memory[sizeof(Memory)];
  auto& [tiles, softmax, block] = *reinterpret_cast<Memory*>(memory);

  const ForwardSimtParams& p = params.forward;
  const AttentionArgs& a = p.a;
  block.find(p, false);
  block.read_rows(p);
  const Scores<C, true> scores(a, block.unit);
  const int x = threadIdx.x % kSimtSide;

  // Calls body(scores, hidden pairs, first key) for each tile of keys.
  const auto for_tiles = [&](auto body) {
#pragma unroll 1
    for (int tile = 0; tile < parts_of(a.k_len, kRightRows); ++tile) {
      const int begin = tile * kRightRows,
                count = min(static_cast<int>(a.k_len) - begin, kRightRows);
      C pairs[kRows][kRun] = {};
      unsigned hidden = ~0u;
      if (!block.all.hides(begin, begin + count)) {
        multiply_rows<T>(tiles, Operand{p.q, [&](int r) { return block.q[r]; }},
                         rows_from(block.keys, p.k, begin, count), block.busy(), pairs);
        hidden = score_pairs(scores, block, begin + x * kRun, true, tiles, pairs);
      }
      body(pairs, hidden, begin + x * kRun);
    }
  };

  RowSums<C, kRows> rows{softmax};
  rows.clear();
  for_tiles(
      [&](C(&pairs)[kRows][kRun], unsigned hidden, int) { weigh_pairs(pairs, hidden, rows); });
  rows.join();
  const auto weights = slab_of<T>(a.weights, block.unit.batch);
  for_tiles([&](C(&pairs)[kRows][kRun], unsigned hidden, int key) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = block.row(i);
      if (row >= block.unit.rows) break;
      const int64_t head = block.unit.head(row);
      const RowResult<C> result = finish_row(softmax[i], sink_of<C>(a, head));
      const C point = reference_point(softmax[i].best);
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const C weight = power_of_2(rounded_sum(pairs[i][j], -point)) * result.factor;
        pairs[i][j] = hidden & pair_bit(i, j) ? C(0) : weight;
      }
      store_quad(weights.row(head, block.unit.query(row)), key, params.weights, pairs[i]);
    }
  });
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
