// Attention on the tensor cores of sm_90a: the computation of forward_mma.cuh, for calls without
// options, cut for what these can do by themselves.
//
// A block has one or two groups of four warps that compute, with 64 rows each, and four warps that
// send for what these need. Keys and values come in boxes of 128 keys by 64 columns, copied by an
// engine of its own; queries, and keys and values with unusual steps, by three of the four warps.
// Blocks stay for many items, and the next item's queries and first keys arrive while the results
// of this one are written.
//
// Products run on by themselves. A group starts those of the next scores and then those of the last
// weights with their values, and finds the next weights while the latter run:
//
//   S0    S1, P0 v   softmax of S1   S2, P1 v   softmax of S2   ...
//
// Two groups take turns at starting products: one's softmax hides behind the other's products.
#pragma once

#include "finished_rows.cuh"
#include "online_softmax.cuh"
#include "wgmma_sender.cuh"

namespace tegula {

// A group of four warps: they have 64 rows, of which each warp has 16.
template <class T, WgmmaShape kShape>
class WgmmaGroup : WgmmaBlock<kShape> {
  using Base = WgmmaBlock<kShape>;
  using Base::a_, Base::p_, Base::shared_, Base::tiles_, Base::at;
  using Base::kBoxBytes, Base::kDim, Base::kGroups, Base::kHalves, Base::kKeys, Base::kRows;
  using Base::kStages;
  static constexpr int kN = kKeys / 8, kColumns = kDim / 8, kChunkTiles = kKeyChunk / kKeys;
  static constexpr int kThreads = 128 * kGroups;

 public:
  TEGULA_DEVICE WgmmaGroup(const AttentionWgmmaParams& params, unsigned char* memory)
      : Base(params, memory), scale_(static_cast<float>(params.forward.a.scale * kLog2E)) {}

  TEGULA_DEVICE void run() {
    if (kGroups == 2 && group() == 1) pass_turn();
#pragma unroll 1
    for (int turn = 0;; ++turn) {
      wait_for_phase(at(shared_.queries_full), turn);
      record_ = &shared_.records[turn % 2];
      if (record_->index < 0) break;
      compute();
      release(shared_.record_empty[turn % 2]);
    }
    if (kGroups == 2 && group() == 0) take_turn();  // that the other group left
  }

 private:
  TEGULA_DEVICE void compute() {
    const KeyTiles& tiles = record_->item.tiles;
    const int count = tiles.count();
    start_chunk();
    bool stored = false;
    if (count == 0) {
      release(shared_.queries_empty);
    } else {
      float s[kN][4];
      uint32_t weights[kN][2];
      wait_for_phase(at(shared_.keys_full[tile_ % kStages]), tile_ / kStages);
      multiply_keys(s);
      wait_for_products<0>();
      hold(s);
      release(shared_.keys_empty[tile_ % kStages]);
      float rescale[2];
      weigh(s, rescale, tiles[0] * kKeys);
      round_weights<T>(s, weights);
      clean_values(weights, tiles[0] * kKeys);
#pragma unroll 1
      for (int i = 1; i < count; ++i) {
        hold(weights);
        if (kGroups == 2) take_turn();
        ++tile_;
        wait_for_phase(at(shared_.keys_full[tile_ % kStages]), tile_ / kStages);
        multiply_keys(s);
        wait_for_phase(at(shared_.values_full[(tile_ - 1) % kStages]), (tile_ - 1) / kStages);
        multiply_values(weights, tile_ - 1);
        if (kGroups == 2) pass_turn();
        wait_for_products<1>();
        hold(s);
        release(shared_.keys_empty[tile_ % kStages]);
        if (tiles[i] / kChunkTiles != tiles[i - 1] / kChunkTiles) {
          wait_for_products<0>();
          hold(out_);
          join_chunk(stored);
          store_chunk();
          stored = true;
          start_chunk();
        }
        weigh(s, rescale, tiles[i] * kKeys);
        wait_for_products<0>();
        hold(out_);
        release(shared_.values_empty[(tile_ - 1) % kStages]);
        rescale_sums(out_, rescale);
        round_weights<T>(s, weights);
        clean_values(weights, tiles[i] * kKeys);
      }
      release(shared_.queries_empty);
      wait_for_phase(at(shared_.values_full[tile_ % kStages]), tile_ / kStages);
      multiply_values(weights, tile_);
      wait_for_products<0>();
      hold(out_);
      release(shared_.values_empty[tile_ % kStages]);
      ++tile_;
    }
    join_chunk(stored);
    if (record_->item.chunk >= 0) {
      store_chunk();
    } else {
      write();
    }
  }

  // --- who may do what ------------------------------------------------------------------------

  // Each warp says so for itself.
  TEGULA_DEVICE void release(const uint64_t& barrier) {
    __syncwarp();
    if (lane() == 0) arrive(at(barrier));
  }
  TEGULA_DEVICE void take_turn() { barrier_wait(kTurns + group(), kThreads); }
  TEGULA_DEVICE void pass_turn() { barrier_arrive(kTurns + 1 - group(), kThreads); }

  // --- one tile of keys -------------------------------------------------------------------------

  TEGULA_DEVICE void multiply_keys(float (&s)[kN][4]) {
    const uint32_t queries = tiles_ + group() * 64 * 128, keys = this->keys_at(tile_);
    hold(s);
    begin_products();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        multiply_rows(s, matrix_at(queries + half * Base::kQueryBoxBytes + k * 32, 16),
                      matrix_at(keys + half * kBoxBytes + k * 32, 16), half == 0 && k == 0, T{});
      }
    }
    commit_products();
  }

  TEGULA_DEVICE void multiply_values(const uint32_t (&weights)[kN][2], int tile) {
    const uint32_t values = this->values_at(tile);
    hold(out_);
    begin_products();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint32_t a[4] = {weights[2 * k][0], weights[2 * k][1], weights[2 * k + 1][0],
                             weights[2 * k + 1][1]};
      multiply_weights(out_, a, matrix_at(values + k * 16 * 128, kBoxBytes), T{});
    }
    commit_products();
  }

  TEGULA_DEVICE void weigh(float (&s)[kN][4], float (&rescale)[2], int begin) {
    if (!record_->sights[warp_row() / 32].shows_all(begin, begin + kKeys)) {
      hide_keys(s, record_->seen[row_of(0)], record_->seen[row_of(1)], begin + column());
    }
    weigh_rows<true>(s, scale_, softmax_, rescale);
  }

  // Where values are not finite that some row may not see: see gradient_tiles.cuh.
  TEGULA_DEVICE void clean_values(const uint32_t (&weights)[kN][2], int begin) {
    if (record_->item.sight.shows_all(begin, begin + kKeys)) return;
    wait_for_phase(at(shared_.values_full[tile_ % kStages]), tile_ / kStages);
    const uint32_t values = this->values_at(tile_);
    const int thread = opaque(threadIdx.x) - 128;
    if (!any_of(kVotes, kThreads, finds_unclean<T, kDim>(values, kKeys, thread, kThreads))) return;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) add_unclean_values(weights, values, begin, half);
    barrier_wait(kVotes, kThreads);
    clear_unclean<T, kDim>(values, kKeys, thread, kThreads);
    fence_async();
    barrier_wait(kVotes, kThreads);
  }
  TEGULA_DEVICE void add_unclean_values(const uint32_t (&weights)[kN][2], uint32_t values,
                                        int begin, int half) {
    auto& out = reinterpret_cast<float (&)[1][8][4]>(out_[half * 8]);
    const auto& all = reinterpret_cast<const uint32_t (&)[1][kN][2]>(weights);
    add_unclean<T, 64>(out, all, values + half * kBoxBytes,
                       [&](int, int h, int i) { return record_->seen[row_of(h)].sees(begin + i); });
  }

  // --- chunks of keys -------------------------------------------------------------------------

  TEGULA_DEVICE void start_chunk() {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[n][i] = 0;
    }
    softmax_[0] = softmax_[1] = RowSoftmax<float>::none();
  }
  TEGULA_DEVICE int64_t place_of(int row) const {
    const ForwardItem& item = record_->item;
    if (item.chunk >= 0) return place_of_chunk(p_, item.unit, item.first_row + row, item.chunk);
    return int64_t{blockIdx.x} * kRows + row;
  }
  TEGULA_DEVICE void join_chunk(bool stored) {
    __syncwarp();  // one lane has stored what four read
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      softmax_[h] = complete(softmax_[h], scale_);
      if (stored) join_row(p_, place_of(row_of(h)), h, out_, softmax_[h]);
    }
  }
  TEGULA_DEVICE void store_chunk() {
    __syncwarp();  // one lane overwrites what four have read
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool exists = record_->item.first_row + row_of(h) < record_->item.unit.rows;
      if (record_->item.chunk >= 0 && !exists) continue;
      store_row(p_, place_of(row_of(h)), h, out_, softmax_[h]);
    }
  }

  // --- results --------------------------------------------------------------------------------

  TEGULA_DEVICE void write() {
    const uint32_t tile = tiles_ + kShape.out_at();
    __syncwarp();  // the last item's rows are copied
    round_rows<T, kDim>(a_, record_->item, out_, softmax_, tile, warp_row());
    write_rows<kDim>(p_, record_->item, tile, warp_row(), 16);
  }

  // --- where a thread stands --------------------------------------------------------------------

  static TEGULA_DEVICE int lane() { return opaque(threadIdx.x) % 32; }
  static TEGULA_DEVICE int group() { return opaque(threadIdx.x) / 128 - 1; }
  // In the block's rows and in 8 columns of a fragment, as ptx.cuh says.
  static TEGULA_DEVICE int warp_row() { return (opaque(threadIdx.x) / 32 - 4) * 16; }
  static TEGULA_DEVICE int row_of(int h) { return warp_row() + h * 8 + lane() / 4; }
  static TEGULA_DEVICE int column() { return lane() % 4 * 2; }

  const float scale_;  // of scores in units of log 2
  const WgmmaRecord<kShape>* record_ = nullptr;
  int tile_ = 0;  // counts tiles of all items
  float out_[kColumns][4];
  RowSoftmax<float> softmax_[2];  // best in units of the scores, the sum of the lane's own keys
};

template <class T, WgmmaShape kShape>
TEGULA_DEVICE void attention_forward(const AttentionWgmmaParams& params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WgmmaShared<kShape>*>(memory + kShape.shared_at());
  if (threadIdx.x == 0) {
    shared.init(kShape.groups * 4, params.boxed ? 1 : WgmmaShape::kLoaders);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    if (kShape.groups == 2) keep_registers<kSenderRegisters>();
    WgmmaSender<kShape>(params, memory).run();
  } else {
    if (kShape.groups == 2) take_registers<kGroupRegisters>();
    WgmmaGroup<T, kShape>(params, memory).run();
  }
}

}  // namespace tegula

// Code for other devices only says that nobody should have come here.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TEGULA_ON_SM_90A(...) __VA_ARGS__
#else
#define TEGULA_ON_SM_90A(...) __trap();
#endif

#define TEGULA_WGMMA_KERNEL(type, name, dim, groups)                                             \
  extern "C" __global__ void __launch_bounds__((groups + 1) * 128, 1)                            \
      attention_forward_wgmma_##name##_d##dim##_g##groups(                                       \
          const __grid_constant__ tegula::AttentionWgmmaParams params) {                         \
    TEGULA_ON_SM_90A(tegula::attention_forward<type, tegula::wgmma_shape(dim, groups)>(params);) \
  }
#define TEGULA_WGMMA_KERNELS(type, name)  \
  TEGULA_WGMMA_KERNEL(type, name, 64, 1)  \
  TEGULA_WGMMA_KERNEL(type, name, 64, 2)  \
  TEGULA_WGMMA_KERNEL(type, name, 128, 1) \
  TEGULA_WGMMA_KERNEL(type, name, 128, 2)
