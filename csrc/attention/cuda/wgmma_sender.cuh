// The warps of forward_wgmma.cuh that send for queries, keys and values.
#pragma once

#include "wgmma_block.cuh"

namespace tegula {

// The first four warps.
template <WgmmaShape kShape>
class WgmmaSender : WgmmaBlock<kShape> {
  using Base = WgmmaBlock<kShape>;
  using Base::a_, Base::p_, Base::params_, Base::shared_, Base::tiles_, Base::at;
  using Base::kBoxBytes, Base::kHalves, Base::kKeys, Base::kRows, Base::kStages;
  static constexpr int kThreads = 128, kLoaders = WgmmaShape::kLoaders;

 public:
  TEGULA_DEVICE WgmmaSender(const AttentionWgmmaParams& params, unsigned char* memory)
      : Base(params, memory) {}

  TEGULA_DEVICE void run() {
    int64_t index = blockIdx.x;
    int tile = 0;
#pragma unroll 1
    for (int turn = 0;; ++turn) {
      auto& record = shared_.records[turn % 2];
      if (turn >= 2) wait_for_phase(at(shared_.record_empty[turn % 2]), turn / 2 - 1);
      if (index >= p_.items) {
        if (threadIdx.x == 0) record.index = -1;
        barrier_wait(kSenders, kThreads);
        if (threadIdx.x < kLoaders) {
          if (turn >= 1) wait_for_phase(at(shared_.queries_empty), turn - 1);
          arrive(at(shared_.queries_full));
        }
        return;
      }
      start(index, record);
      const int64_t next = record.item.next;
      if (threadIdx.x < kLoaders) {
        if (turn >= 1) wait_for_phase(at(shared_.queries_empty), turn - 1);
        send_queries(record.item);
        if (!params_.boxed) send_tiles<Rows>(record.item, tile);
      } else if (threadIdx.x == kLoaders && params_.boxed) {
        send_tiles<Boxes>(record.item, tile);
      }
      __syncwarp();
      tile += record.item.tiles.count();
      index = next;
    }
  }

 private:
  TEGULA_DEVICE void start(int64_t index, WgmmaRecord<kShape>& record) {
    const ItemRows rows(p_, index, kRows);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      describe_item(p_, index, rows, record.item);
      record.index = index;
      record.item.next =
          gridDim.x +
          (p_.taken == nullptr ? index : static_cast<int64_t>(atomicAdd(p_.taken, 1ull)));
    }
    if (thread < kRows) {
      look_at_rows(a_, rows, thread, true, record.seen, record.sights[thread / 32]);
    }
    barrier_wait(kSenders, kThreads);
    if (thread == 0) sum_up_item(record.sights, kKeys, record.item);
    barrier_wait(kSenders, kThreads);
  }

  TEGULA_DEVICE void send_queries(const ForwardItem& item) {
    const RowPlaces places(item.unit, item.first_row);
    const int64_t step = a_.q.step(0);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const Slab<const uint16_t> q{item.q + half * 64 * step, a_.q.step(2), a_.q.step(1), step};
      load_tile<64, kRows, kLoaders>(
          tiles_ + half * Base::kQueryBoxBytes, [&](int row) { return places.row_of(q, row); },
          static_cast<int>(a_.dim) - half * 64, step, p_.q_chunks);
    }
    arrive_with_copies(at(shared_.queries_full));
  }

  // The first values come after the second keys: so they are needed.
  template <class How>
  TEGULA_DEVICE void send_tiles(const ForwardItem& item, int tile) {
    const int count = item.tiles.count();
#pragma unroll 1
    for (int i = 0; i <= count; ++i) {
      if (i < count) {
        send(How{params_.k, a_.k, item.k, p_.k_chunks}, item, i, this->keys_at(tile + i), tile + i,
             shared_.keys_full, shared_.keys_empty);
      }
      if (i > 0) {
        send(How{params_.v, a_.v, item.v, p_.v_chunks}, item, i - 1, this->values_at(tile + i - 1),
             tile + i - 1, shared_.values_full, shared_.values_empty);
      }
    }
  }
  template <class How>
  TEGULA_DEVICE void send(const How& from, const ForwardItem& item, int i, uint32_t to, int tile,
                          const uint64_t (&full)[kStages], const uint64_t (&empty)[kStages]) {
    const int stage = tile % kStages;
    if (tile >= kStages) wait_for_phase(at(empty[stage]), tile / kStages - 1);
    from.send(item, item.tiles[i] * kKeys, to, at(full[stage]));
  }

  // By one thread, which only has to ask for them.
  struct Boxes {
    const WgmmaTiles& tiles;
    const View& view;
    const uint16_t* rows;
    bool chunks;

    TEGULA_DEVICE void send(const ForwardItem& item, int begin, uint32_t to, uint32_t full) const {
      const int head = tiles.heads ? static_cast<int>(item.unit.key_head) : 0;
      const int batch = tiles.batches ? static_cast<int>(item.unit.batch) : 0;
      arrive_with_bytes(full, Base::kTileBytes);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        copy_box(to + half * kBoxBytes, tiles.map, half * 64, begin, head, batch, full);
      }
    }
  };

  // By all loaders, where rows lie as no engine can find them.
  struct Rows {
    const WgmmaTiles& tiles;
    const View& view;
    const uint16_t* rows;  // of key 0
    bool chunks;

    TEGULA_DEVICE void send(const ForwardItem& item, int begin, uint32_t to, uint32_t full) const {
      const int64_t step = view.step(0), row_step = view.step(1);
#pragma unroll 1
      for (int half = 0; half < kHalves; ++half) {
        load_rows<64, kKeys, kLoaders>(to + half * kBoxBytes,
                                       rows + begin * row_step + half * 64 * step, row_step,
                                       item.sight.lo - begin, item.sight.hi - begin,
                                       static_cast<int>(view.size(0)) - half * 64, step, chunks);
      }
      arrive_with_copies(full);
    }
  };

  // Once what this thread has copied is there.
  static TEGULA_DEVICE void arrive_with_copies(uint32_t full) {
    commit_copies();
    wait_for_copies<0>();
    fence_async();
    arrive(full);
  }
};

}  // namespace tegula
