// dbias: dS = P (dP - delta), summed over whatever bias is repeated along (batch entries, heads,
// queries, keys). dS is made again here, by the first two products of dq_mma.cuh, so that each
// entry has one owner: a block adds up its entries in the order of batch entries and heads, then
// rows, then keys. What is added along queries and keys cancels for the most part, and is summed in
// float64.
//
// Cost per visible pair: D + Dv multiply-adds. A bias that repeats along queries or keys has few
// entries and so few blocks.
#pragma once

#include "backward_params.h"
#include "gradient_tiles.cuh"
#include "gradient_weights.cuh"

namespace tegula {

template <class T, int kDim>
class BiasBlock {
  static constexpr int kTiles = bias_tiles(kDim);
  static constexpr int kN = kStep / 8;
  static constexpr int kKeys = kTiles * kStep;
  static constexpr uint32_t kStepTile = tile_bytes(kStep, kDim);

 public:
  TEGULA_DEVICE BiasBlock(const BiasGradientParams& params, char* memory)
      : p_(params),
        lane_(threadIdx.x % 32),
        own_(static_cast<int>(threadIdx.x) / 32 * 16),
        query_tile_(shared_address(memory)),
        grad_tile_(query_tile_ + tile_bytes(kBiasRows, kDim)),
        key_tiles_(grad_tile_ + tile_bytes(kBiasRows, kDim)),
        value_tiles_(key_tiles_ + kTiles * kStepTile),
        numbers_(*reinterpret_cast<RowNumbers<kBiasRows>*>(
            memory + 2 * tile_bytes(kBiasRows + kKeys, kDim))),
        seen_(reinterpret_cast<SeenKeys*>(memory + 2 * tile_bytes(kBiasRows + kKeys, kDim) +
                                          number_bytes(kBiasRows))) {}

  TEGULA_DEVICE void run() {
    // Which entries are the block's: of all queries or keys where these are summed.
    int64_t index = blockIdx.x;
    const int64_t row_blocks = parts_of(p_.a.q_len, kBiasRows);
    const int64_t key_blocks = parts_of(p_.a.k_len, kKeys);
    int64_t row_block = 0, row_end = row_blocks, key_begin = 0, key_end = key_blocks;
    if (!p_.along_keys) {
      key_begin = index % key_blocks, key_end = key_begin + 1;
      index /= key_blocks;
    }
    if (!p_.along_queries) {
      row_block = index % row_blocks, row_end = row_block + 1;
      index /= row_blocks;
    }
    int64_t first_pair = 0, offset = 0;
    decode(p_.own, index, first_pair, &offset);

    double of_key[kTiles][kN][2] = {}, of_row[2] = {};
    for (; row_block < row_end; ++row_block) {
      const int64_t first_query = row_block * kBiasRows;
      for (int64_t key_block = key_begin; key_block < key_end; ++key_block) {
        const int first_key = static_cast<int>(key_block * kKeys);
        float sums[kTiles][kN][4];
        set_zero(sums);
        for (int64_t i = 0; i < p_.shared.total; ++i) {
          int64_t pair = first_pair;
          decode(p_.shared, i, pair, nullptr);
          add(pair, first_query, first_key, sums);
        }
        if (p_.along_keys) {
          add_up_rows(sums, of_row);
        } else if (p_.along_queries) {
          add_up_keys(sums, of_key);
        } else {
          write_entries(sums, offset, first_query, first_key);
        }
      }
      if (p_.along_keys && !p_.along_queries) {
        write_rows(of_row, offset, first_query);
        of_row[0] = of_row[1] = 0;
      }
    }
    if (!p_.along_queries) return;
    if (p_.along_keys) {
      write_sum(of_row, offset);
    } else {
      write_keys(of_key, offset, static_cast<int>(key_begin * kKeys));
    }
  }

 private:
  // Adds entry `index` of some axes to the number of a batch entry and head, and to an offset.
  TEGULA_DEVICE static void decode(const BiasAxes& axes, int64_t index, int64_t& pair,
                                   int64_t* offset) {
#pragma unroll 1
    for (int axis = axes.count - 1; axis >= 0; --axis) {
      const int64_t rest = axis == 0 ? 0 : index / axes.size[axis];
      const int64_t at = index - rest * axes.size[axis];
      pair += at * axes.place[axis];
      if (offset != nullptr) *offset += at * axes.step[axis];
      index = rest;
    }
  }

  // Adds dS of one batch entry and head.
  TEGULA_DEVICE void add(int64_t pair, int64_t first_query, int first_key,
                         float (&sums)[kTiles][kN][4]) {
    const int64_t head = pair % p_.a.heads, group = p_.a.heads / p_.a.key_heads;
    const int64_t unit_index = pair / p_.a.heads * p_.a.key_heads + head / group;
    const Unit unit = unit_of(p_.a, unit_index);
    const int64_t head_of_unit = head - unit.first_head;
    __syncthreads();  // nobody is at the rows before any more
    const bool sees = load_numbers_of(unit_index, unit, head_of_unit, first_query, first_key);
    if (!__syncthreads_or(sees)) return;
    load(unit, head, first_query, first_key);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    const Scores<float, true> scores(p_.a, unit);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float products[1][kN][4], of_weights[1][kN][4], slopes[1][kN][4];
      set_zero(products);
      multiply_tiles<T, kDim>(products, query_tile_, own_, key_tiles_ + tile * kStepTile);
      set_zero(of_weights);
      multiply_tiles<T, kDim>(of_weights, grad_tile_, own_, value_tiles_ + tile * kStepTile);
      const auto make = [&](int, int n, const float (&product)[4], const float (&of_weight)[4],
                            float (&slope)[4]) {
        const int key = first_key + tile * kStep + n * 8 + lane_ % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int place = own_ + h * 8 + lane_ / 4;
          const int64_t row = (first_query + place) * unit.group + head_of_unit;
          const SeenKeys seen = seen_[place];
          float kept[2];
          scores.kept_pair(row, key, kept);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int i = 2 * h + e;
            slope[i] = slope_of<false>(scores, numbers_, product[i], of_weight[i], kept[e], row,
                                       place, key + e, seen.sees(key + e));
          }
        }
      };
      make_fragments<true>(slopes, make, products, of_weights);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][n][i] += slopes[0][n][i];
      }
    }
  }

  // Numbers of the queries of one head; whether the thread's query sees some of the keys.
  TEGULA_DEVICE bool load_numbers_of(int64_t unit_index, const Unit& unit, int64_t head_of_unit,
                                     int64_t first_query, int first_key) {
    const int i = threadIdx.x;
    if (i >= kBiasRows) return false;
    SeenKeys seen;
    float shift = INFINITY, rest = 0, delta = 0;
    if (first_query + i < p_.a.q_len) {
      const int64_t at =
          unit_index * p_.rows.unit_rows + (first_query + i) * unit.group + head_of_unit;
      shift = static_cast<const float*>(p_.rows.shifts)[at];
      rest = static_cast<const float*>(p_.rows.rests)[at];
      delta = static_cast<const float*>(p_.rows.deltas)[at];
      seen = p_.rows.seen[at];
    }
    numbers_.shifts[i] = shift, numbers_.rests[i] = rest, numbers_.deltas[i] = delta;
    seen_[i] = seen;
    const bool in_gap = first_key >= seen.gap_lo && first_key + kKeys <= seen.gap_hi;
    return seen.lo < first_key + kKeys && seen.hi > first_key && !in_gap;
  }

  TEGULA_DEVICE void load(const Unit& unit, int64_t head, int64_t first_query,
                          int first_key) const {
    const auto rows = [&](const View& view, uint32_t to, int64_t size, bool chunks) {
      const auto slab = slab_of<const uint16_t>(view, unit.batch);
      load_tile<kDim, kBiasRows, 0>(
          to,
          [&](int i) -> const uint16_t* {
            return first_query + i < p_.a.q_len ? slab.row(head, first_query + i) : nullptr;
          },
          static_cast<int>(size), slab.step, chunks);
    };
    const auto keys = [&](const View& view, uint32_t to, int64_t size, bool chunks) {
      const auto slab = slab_of<const uint16_t>(view, unit.batch);
      load_tile<kDim, kKeys, 0>(
          to,
          [&](int i) -> const uint16_t* {
            return first_key + i < p_.a.k_len ? slab.row(unit.key_head, first_key + i) : nullptr;
          },
          static_cast<int>(size), slab.step, chunks);
    };
    rows(p_.a.q, query_tile_, p_.a.dim, p_.q_chunks);
    rows(p_.a.grad_out, grad_tile_, p_.a.value_dim, p_.grad_chunks);
    keys(p_.a.k, key_tiles_, p_.a.dim, p_.k_chunks);
    keys(p_.a.v, value_tiles_, p_.a.value_dim, p_.v_chunks);
  }

  // --- sums along keys or queries, and where they go --------------------------------------------

  TEGULA_DEVICE static void add_up_rows(const float (&sums)[kTiles][kN][4], double (&of_row)[2]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) of_row[i / 2] += sums[tile][n][i];
      }
    }
  }
  TEGULA_DEVICE static void add_up_keys(const float (&sums)[kTiles][kN][4],
                                        double (&of_key)[kTiles][kN][2]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) of_key[tile][n][i % 2] += sums[tile][n][i];
      }
    }
  }

  // The sum over lanes that differ in bits [begin, end) of their number, for each of them.
  TEGULA_DEVICE static double sum_of_lanes(double x, int begin, int end) {
    for (int step = begin; step < end; step *= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
  }

  TEGULA_DEVICE void write_entries(const float (&sums)[kTiles][kN][4], int64_t offset,
                                   int64_t first_query, int first_key) const {
    const View& dbias = p_.a.dbias;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t query = first_query + own_ + i / 2 * 8 + lane_ / 4;
          const int64_t key = first_key + tile * kStep + n * 8 + lane_ % 4 * 2 + i % 2;
          if (query >= p_.a.q_len || key >= p_.a.k_len) continue;
          store_float(dbias, offset + query * dbias.step(1) + key * dbias.step(0),
                      sums[tile][n][i]);
        }
      }
    }
  }

  TEGULA_DEVICE void write_rows(const double (&of_row)[2], int64_t offset,
                                int64_t first_query) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const double sum = sum_of_lanes(of_row[h], 1, 4);
      const int64_t query = first_query + own_ + h * 8 + lane_ / 4;
      if (lane_ % 4 != 0 || query >= p_.a.q_len) continue;
      store_float(p_.a.dbias, offset + query * p_.a.dbias.step(1), sum);
    }
  }

  // Sums of warps, which meet in the memory of the tiles.
  TEGULA_DEVICE void write_keys(const double (&of_key)[kTiles][kN][2], int64_t offset,
                                int first_key) const {
    extern __shared__ __align__(128) uint4 memory[];
    auto* sums = reinterpret_cast<double*>(memory);  // [warp][key]
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const double sum = sum_of_lanes(of_key[tile][n][e], 4, 32);
          if (lane_ >= 4) continue;
          sums[own_ / 16 * kKeys + tile * kStep + n * 8 + lane_ * 2 + e] = sum;
        }
      }
    }
    __syncthreads();
    const int i = threadIdx.x;
    if (i >= kKeys || first_key + i >= p_.a.k_len) return;
    double sum = 0;
    for (int warp = 0; warp < kBiasWarps; ++warp) sum += sums[warp * kKeys + i];
    store_float(p_.a.dbias, offset + (first_key + i) * p_.a.dbias.step(0), sum);
  }

  TEGULA_DEVICE void write_sum(const double (&of_row)[2], int64_t offset) const {
    extern __shared__ __align__(128) uint4 memory[];
    auto* sums = reinterpret_cast<double*>(memory);
    __syncthreads();
    const double sum = sum_of_lanes(of_row[0] + of_row[1], 1, 32);
    if (lane_ == 0) sums[own_ / 16] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double all = 0;
    for (int warp = 0; warp < kBiasWarps; ++warp) all += sums[warp];
    store_float(p_.a.dbias, offset, all);
  }

  const BiasGradientParams& p_;
  const int lane_;
  const int own_;  // the warp's first query of the block
  const uint32_t query_tile_, grad_tile_, key_tiles_, value_tiles_;
  RowNumbers<kBiasRows>& numbers_;
  SeenKeys* const seen_;
};

template <class T, int kDim>
TEGULA_DEVICE void attention_dbias(const BiasGradientParams& params) {
  extern __shared__ __align__(128) uint4 memory[];
  BiasBlock<T, kDim> block(params, reinterpret_cast<char*>(memory));
  block.run();
}

}  // namespace tegula

// The kernels of an element type, for every head size that there are kernels for.
#define TEGULA_DBIAS_KERNEL(T, name, dim)                                  \
  extern "C" __global__ void __launch_bounds__(tegula::kBiasWarps * 32, 2) \
      attention_dbias_mma_##name##_d##dim##_rich(                          \
          const __grid_constant__ tegula::BiasGradientParams params) {     \
    tegula::attention_dbias<T, dim>(params);                               \
  }
#define TEGULA_DBIAS_KERNELS(T, name) \
  TEGULA_DBIAS_KERNEL(T, name, 64)    \
  TEGULA_DBIAS_KERNEL(T, name, 128)   \
  TEGULA_DBIAS_KERNEL(T, name, 256)
