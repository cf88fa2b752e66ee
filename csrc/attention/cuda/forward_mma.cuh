// Attention on tensor cores. A block of threads has some rows of a unit, and goes through the tiles
// of keys that they see:
//
//   S   <- q k^T                          products of 16-bit numbers, summed in float32
//   m'  <- max(m, rowmax(S))              the online softmax
//   P   <- exp(S - m'), rounded to 16 bits
//   l   <- l exp(m - m') + rowsum(P)
//   out <- out exp(m - m') + P v
//
// S, P and the sums of out stay in registers: what a warp's lanes hold of S is what they need of P.
// Keys and values are copied to shared memory while something before them is computed. A row's q is
// read once, keys and values once for each block of rows that sees them.
//
// Keys fold in chunks of kKeyChunk, each computed as if there were no other: see partial_rows.cuh.
// So a row's bits do not depend on how keys are split among blocks, nor on other rows.
//
// Cost per visible pair: D + Dv multiply-adds and one exponential.
#pragma once

#include "finished_rows.cuh"
#include "online_softmax.cuh"

namespace tegula {

template <class T, bool kRich, ForwardShape kShape>
class ForwardBlock {
  static constexpr int kDim = kShape.dim, kKeys = kShape.keys(), kStages = kShape.stages;
  static constexpr int kThreads = kShape.threads(), kRows = kShape.rows();
  static constexpr int kM = kShape.row_tiles;                // fragments of 16 rows
  static constexpr int kN = kKeys / 8, kColumns = kDim / 8;  // of 8 keys, of 8 columns of out
  static constexpr bool kKeepsQueries = kM * kDim <= 128;    // in registers
  static constexpr int kUnderWay = 2 * (kStages - 1);        // copies, when one is due
  static constexpr int kChunkTiles = kKeyChunk / kKeys;
  static_assert(kKeyChunk % kKeys == 0);

 public:
  TEGULA_DEVICE ForwardBlock(const AttentionForwardParams& params, unsigned char* memory)
      : p_(params),
        a_(params.a),
        tiles_(shared_address(memory)),
        own_queries_(tiles_ + tile_offset<kDim>(warp_row() + lane() % 16, lane() / 16)),
        own_keys_(tiles_ + kShape.keys_at() +
                  tile_offset<kDim>(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2)),
        own_values_(tiles_ + kShape.values_at() + tile_offset<kDim>(lane() % 16, lane() / 16)),
        record_(*reinterpret_cast<ForwardRecord<kShape>*>(memory + kShape.record_at())) {}

  TEGULA_DEVICE void run() {
    for (int64_t index = blockIdx.x; index < p_.items; index = next_item(p_, index, record_.item)) {
      start_item<kShape>(p_, index, tiles_, record_);
      compute();
    }
  }

 private:
  TEGULA_DEVICE void compute() {
    const KeyTiles& tiles = record_.item.tiles;
    load_keys(0);
    commit_copies();  // with the queries
    if constexpr (kStages == 2) {
      load_values(0), commit_copies();
      load_keys(1), commit_copies();
    }
    start_chunk();
    bool stored = false;
    int i = 0;
    while (true) {
      const int end = i < tiles.count() ? (tiles[i] / kChunkTiles + 1) * kChunkTiles : 0;
#pragma unroll 1
      for (; i < tiles.count() && tiles[i] < end; ++i) visit(i);
      join_chunk(stored);
      if (i >= tiles.count()) break;
      store_chunk();
      stored = true;
      start_chunk();
    }
    // Copies that nobody needed, and warps that are still at the last tile.
    wait_for_copies<0>();
    __syncthreads();
    if (record_.item.chunk >= 0) {
      store_chunk();
    } else {
      write();
    }
  }

  // --- copies -----------------------------------------------------------------------------------

  // The i-th tile, to where the one `stages` before it lay. Keys that no row sees are zeros.
  TEGULA_DEVICE void load(int i, const uint16_t* rows, const View& view, uint32_t to, bool chunks) {
    if (i >= record_.item.tiles.count()) return;
    const int begin = record_.item.tiles[i] * kKeys;
    load_rows<kDim, kKeys, kThreads>(to + i % kStages * kShape.tile_bytes(),
                                     rows + begin * view.step(1), view.step(1),
                                     record_.item.sight.lo - begin, record_.item.sight.hi - begin,
                                     static_cast<int>(view.size(0)), view.step(0), chunks);
  }
  TEGULA_DEVICE void load_keys(int i) {
    load(i, record_.item.k, a_.k, tiles_ + kShape.keys_at(), p_.k_chunks);
  }
  TEGULA_DEVICE void load_values(int i) {
    load(i, record_.item.v, a_.v, tiles_ + kShape.values_at(), p_.v_chunks);
  }

  // --- one tile of keys -------------------------------------------------------------------------

  TEGULA_DEVICE void visit(int i) {
    const uint32_t stage = i % kStages * kShape.tile_bytes();
    const uint32_t values = tiles_ + kShape.values_at() + stage;
    const int begin = record_.item.tiles[i] * kKeys;

    wait_for_copies<kUnderWay>();
    __syncthreads();  // the keys are there, and the values before them done with
    load_values(i + kStages - 1);
    commit_copies();
    if (kKeepsQueries && i == 0) load_queries();
    float s[kM][kN][4];
    multiply_keys(s, own_keys_ + stage);
    if (kRich || !record_.sights[warp()].shows_all(begin, begin + kKeys)) finish_scores(s, begin);
    wait_for_copies<kUnderWay>();
    __syncthreads();  // the values are there, and the keys done with
    load_keys(i + kStages);
    commit_copies();
    const bool unclean = may_hide(begin) && __syncthreads_or(finds_unclean<T, kDim>(values, kKeys));
    uint32_t weights[kM][kN][2];
    weigh(s, weights, begin);
    if (unclean) {
      add_unclean_values(weights, values, begin);
      __syncthreads();
      clear_unclean<T, kDim>(values, kKeys);
      __syncthreads();
    }
    multiply_values(weights, own_values_ + stage);
  }

  // Whether some row may not see some key of the tile.
  TEGULA_DEVICE bool may_hide(int begin) const {
    return (kRich && (a_.dense || a_.bias)) || !record_.item.sight.shows_all(begin, begin + kKeys);
  }

  TEGULA_DEVICE void multiply_keys(float (&s)[kM][kN][4], uint32_t keys) {
    set_zero(s);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t left[kM][4];
      if constexpr (!kKeepsQueries) {
#pragma unroll
        for (int m = 0; m < kM; ++m)
          load_matrices(left[m], fragment<kDim>(own_queries_, m * 16, k));
      }
#pragma unroll
      for (int n = 0; n < kN; n += 2) {
        uint32_t right[4];
        load_matrices(right, fragment<kDim>(keys, n * 8, k));
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const auto& rows = kKeepsQueries ? queries_[m][k] : left[m];
          multiply_add(s[m][n], rows, right[0], right[1], T{});
          multiply_add(s[m][n + 1], rows, right[2], right[3], T{});
        }
      }
    }
  }
  TEGULA_DEVICE void load_queries() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        load_matrices(queries_[m][k], fragment<kDim>(own_queries_, m * 16, k));
      }
    }
  }

  // out += weights times the tile.
  TEGULA_DEVICE void multiply_values(const uint32_t (&weights)[kM][kN][2], uint32_t values) {
#pragma unroll
    for (int k = 0; k < kN; k += 2) {
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        uint32_t right[4];
        load_matrices_transposed(right, fragment<kDim>(values, k * 8, n / 2));
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const uint32_t left[4] = {weights[m][k][0], weights[m][k][1], weights[m][k + 1][0],
                                    weights[m][k + 1][1]};
          multiply_add(out_[m][n], left, right[0], right[1], T{});
          multiply_add(out_[m][n + 1], left, right[2], right[3], T{});
        }
      }
    }
  }

  // All options, and -inf where a row does not see a key.
  TEGULA_DEVICE void finish_scores(float (&s)[kM][kN][4], int begin) const {
    const Scores<float, kRich> scores(a_, record_.item.unit);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(m, h);
        const SeenKeys seen = record_.seen[row];
        const RowPlace place = place_in_unit(row);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int key = begin + n * 8 + column() + e;
            float& score = s[m][n][2 * h + e];
            if (!seen.sees(key)) {
              score = negative_infinity<float>();
            } else if constexpr (kRich) {
              score = scores(score, place, key);
            }
          }
        }
      }
    }
  }

  TEGULA_DEVICE RowPlace place_in_unit(int row) const {
    return kRich ? record_.item.unit.place(record_.item.first_row + row) : RowPlace{};
  }

  // From scores to weights. Rich scores are in units of log 2.
  TEGULA_DEVICE void weigh(float (&s)[kM][kN][4], uint32_t (&weights)[kM][kN][2], int begin) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float rescale[2];
      weigh_rows<!kRich>(s[m], scale_of_scores(), softmax_[m], rescale);
      if (kRich && a_.dropout.active()) drop_weights(s[m], m, begin);
      round_weights<T>(s[m], weights[m]);
      rescale_sums(out_[m], rescale);
    }
  }
  TEGULA_DEVICE float scale_of_scores() const {
    return kRich ? 1.0f : static_cast<float>(a_.scale * kLog2E);
  }

  // Dropped weights have counted in the softmax; kept ones are scaled at the end. Two lanes share
  // four keys, whose decisions come together: one makes them for a row, one for the other.
  TEGULA_DEVICE void drop_weights(float (&s)[kN][4], int m, int begin) const {
    const Scores<float, kRich> scores(a_, record_.item.unit);
    const bool second = lane() % 2 != 0;
    const RowPlace row = place_in_unit(row_of(m, second));
    uint32_t kept[2] = {};  // of each half, two bits for each n
#pragma unroll 1
    for (int n = 0; n < kN; ++n) {
      float factors[4];
      scores.kept_run(row, begin + n * 8 + column() / 4 * 4, factors);
      uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(factors[i] != 0) << i;
      const uint32_t own = second ? bits >> 2 : bits & 3;
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, second ? bits & 3 : bits >> 2, 1);
      kept[0] |= (second ? other : own) << 2 * n, kept[1] |= (second ? own : other) << 2 * n;
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((kept[i / 2] >> (2 * n + i % 2) & 1) == 0) s[n][i] = 0;
      }
    }
  }

  TEGULA_DEVICE void add_unclean_values(const uint32_t (&weights)[kM][kN][2], uint32_t values,
                                        int begin) {
    const Scores<float, kRich> scores(a_, record_.item.unit);
    add_unclean<T, kDim>(out_, weights, values, [&](int m, int h, int i) {
      const int row = row_of(m, h), key = begin + i;
      return record_.seen[row].sees(key) && scores.shows(record_.item.first_row + row, key);
    });
  }

  // --- chunks of keys -------------------------------------------------------------------------

  TEGULA_DEVICE void start_chunk() {
    set_zero(out_);
#pragma unroll
    for (int m = 0; m < kM; ++m) softmax_[m][0] = softmax_[m][1] = RowSoftmax<float>::none();
  }

  TEGULA_DEVICE int64_t place_of(int row) const {
    const ForwardItem& item = record_.item;
    if (item.chunk >= 0) return place_of_chunk(p_, item.unit, item.first_row + row, item.chunk);
    return int64_t{blockIdx.x} * kRows + row;
  }

  // The chunk is complete: its softmax, in units of log 2, joins those before it, if any are
  // stored.
  TEGULA_DEVICE void join_chunk(bool stored) {
    __syncwarp();  // one lane has stored what four read
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        softmax_[m][h] = complete(softmax_[m][h], scale_of_scores());
        if (stored) join_row(p_, place_of(row_of(m, h)), h, out_[m], softmax_[m][h]);
      }
    }
  }

  TEGULA_DEVICE void store_chunk() {
    __syncwarp();  // one lane overwrites what four have read
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(m, h);
        const bool exists = record_.item.first_row + row < record_.item.unit.rows;
        if (record_.item.chunk >= 0 && !exists) continue;
        store_row(p_, place_of(row), h, out_[m], softmax_[m][h]);
      }
    }
  }

  // --- results --------------------------------------------------------------------------------

  // Rounded, where the warp's queries lay; from there to memory in long pieces.
  TEGULA_DEVICE void write() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      round_rows<T, kDim>(a_, record_.item, out_[m], softmax_[m], tiles_, warp_row() + m * 16);
    }
    write_rows<kDim>(p_, record_.item, tiles_, warp_row(), kShape.warp_rows());
  }

  // --- where a thread stands --------------------------------------------------------------------

  static TEGULA_DEVICE int lane() { return opaque(static_cast<int>(threadIdx.x)) % 32; }
  static TEGULA_DEVICE int warp() { return opaque(static_cast<int>(threadIdx.x)) / 32; }
  static TEGULA_DEVICE int warp_row() { return warp() * kShape.warp_rows(); }
  // In the block's rows and in 8 columns of a fragment, as ptx.cuh says.
  static TEGULA_DEVICE int row_of(int m, int h) { return warp_row() + m * 16 + h * 8 + lane() / 4; }
  static TEGULA_DEVICE int column() { return lane() % 4 * 2; }

  const AttentionForwardParams& p_;
  const AttentionArgs& a_;
  const uint32_t tiles_;                                // in shared memory: queries, keys, values
  const uint32_t own_queries_, own_keys_, own_values_;  // where the lane reads a tile's fragments
  ForwardRecord<kShape>& record_;
  uint32_t queries_[kKeepsQueries ? kM : 1][kDim / 16][4];
  float out_[kM][kColumns][4];
  RowSoftmax<float> softmax_[kM][2];  // best in units of the scores, the sum of the lane's own keys
};

template <class T, bool kRich, ForwardShape kShape>
TEGULA_DEVICE void attention_forward(const AttentionForwardParams& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  ForwardBlock<T, kRich, kShape>(p, memory).run();
}

}  // namespace tegula

#define TEGULA_FORWARD_KERNEL(type, name, dim, kind, rich, warps)                      \
  extern "C" __global__ void __launch_bounds__(warps * 32, 1)                          \
      attention_forward_mma_##name##_d##dim##_##kind##_w##warps(                       \
          const __grid_constant__ tegula::AttentionForwardParams p) {                  \
    tegula::attention_forward<type, rich, tegula::forward_shape(dim, rich, warps)>(p); \
  }
#define TEGULA_FORWARD_KERNELS_OF(type, name, dim, kind, rich) \
  TEGULA_FORWARD_KERNEL(type, name, dim, kind, rich, 4)        \
  TEGULA_FORWARD_KERNEL(type, name, dim, kind, rich, 1)
// One for each head_class.
#define TEGULA_FORWARD_KERNELS(type, name)                 \
  TEGULA_FORWARD_KERNELS_OF(type, name, 32, plain, false)  \
  TEGULA_FORWARD_KERNELS_OF(type, name, 64, plain, false)  \
  TEGULA_FORWARD_KERNELS_OF(type, name, 128, plain, false) \
  TEGULA_FORWARD_KERNELS_OF(type, name, 256, plain, false) \
  TEGULA_FORWARD_KERNELS_OF(type, name, 64, rich, true)    \
  TEGULA_FORWARD_KERNELS_OF(type, name, 128, rich, true)   \
  TEGULA_FORWARD_KERNELS_OF(type, name, 256, rich, true)
