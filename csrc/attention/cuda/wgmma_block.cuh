// What a block of threads of forward_wgmma.cuh holds in shared memory, and who waits for whom.
#pragma once

#include "../../cuda/ptx_hopper.cuh"
#include "forward_item.cuh"
#include "forward_wgmma_params.h"

namespace tegula {

// Of an item, in shared memory. There are two: the next item's is written while this one's is read.
template <WgmmaShape kShape>
struct WgmmaRecord {
  ForwardItem item;
  int64_t index;  // of the item; -1: there are no more
  SeenKeys seen[kShape.rows()];
  SeenByAll sights[kShape.rows() / 32];
};

template <WgmmaShape kShape>
struct WgmmaShared {
  WgmmaRecord<kShape> records[2];
  uint64_t queries_full, queries_empty;
  uint64_t keys_full[kShape.stages], keys_empty[kShape.stages];
  uint64_t values_full[kShape.stages], values_empty[kShape.stages];
  uint64_t record_empty[2];

  // `warps`: those that compute; `senders`: threads that send a tile.
  TEGULA_DEVICE void init(int warps, int senders) {
    const auto init = [](uint64_t& barrier, int count) {
      init_barrier(shared_address(&barrier), count);
    };
    init(queries_full, WgmmaShape::kLoaders), init(queries_empty, warps);
#pragma unroll
    for (int stage = 0; stage < kShape.stages; ++stage) {
      init(keys_full[stage], senders), init(keys_empty[stage], warps);
      init(values_full[stage], senders), init(values_empty[stage], warps);
    }
    init(record_empty[0], warps), init(record_empty[1], warps);
    fence_async();
  }
};

// A thread's, of 65536 that three groups of warps share.
inline constexpr int kSenderRegisters = 72, kGroupRegisters = 216;

// Barriers of some warps.
enum WgmmaBarrier { kSenders = 1, kTurns = 2, kVotes = 4 };

// What both kinds of warps know.
template <WgmmaShape kShape>
class WgmmaBlock {
 protected:
  static constexpr int kDim = kShape.dim, kRows = kShape.rows(), kGroups = kShape.groups;
  static constexpr int kStages = kShape.stages, kKeys = WgmmaShape::kKeys;
  static constexpr int kHalves = kDim / 64;  // boxes of 64 columns
  static constexpr int kBoxBytes = kKeys * 128;
  static constexpr int kTileBytes = kHalves * kBoxBytes;
  static constexpr int kQueryBoxBytes = kRows * 128;
  static_assert(sizeof(WgmmaShared<kShape>) <= WgmmaShape::kSharedBytes);

  TEGULA_DEVICE WgmmaBlock(const AttentionWgmmaParams& params, unsigned char* memory)
      : params_(params),
        p_(params.forward),
        a_(params.forward.a),
        tiles_(shared_address(memory)),
        shared_(*reinterpret_cast<WgmmaShared<kShape>*>(memory + kShape.shared_at())) {}

  TEGULA_DEVICE uint32_t keys_at(int tile) const {
    return tiles_ + kShape.keys_at() + tile % kStages * (2 * kTileBytes);
  }
  TEGULA_DEVICE uint32_t values_at(int tile) const { return keys_at(tile) + kTileBytes; }
  static TEGULA_DEVICE uint32_t at(const uint64_t& barrier) { return shared_address(&barrier); }

  const AttentionWgmmaParams& params_;
  const AttentionForwardParams& p_;
  const AttentionArgs& a_;
  const uint32_t tiles_;  // queries, then out, then stages of keys and values
  WgmmaShared<kShape>& shared_;
};

}  // namespace tegula
