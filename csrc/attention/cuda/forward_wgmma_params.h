// What the forward kernels of sm_90a are launched with, and the shapes of their blocks.
#pragma once

#include "../../cuda/tensor_map.h"
#include "forward_params.h"

namespace tegula {

struct WgmmaShape {
  int dim;     // 64 or 128
  int groups;  // of four warps with 64 rows, besides four warps that send for what these need
  int stages;  // tiles of keys and of values in shared memory

  static constexpr int kKeys = 128, kLoaders = 96;  // threads that copy queries
  static constexpr int kSharedBytes = 5120;         // of a WgmmaShared

  TEGULA_INLINE constexpr int rows() const { return groups * 64; }
  TEGULA_INLINE constexpr int threads() const { return (groups + 1) * 128; }
  // Shared memory: queries, out, stages, and what blocks know. All tiles lie at multiples of 1024.
  TEGULA_INLINE constexpr int out_at() const { return rows() * dim * 2; }
  TEGULA_INLINE constexpr int keys_at() const { return 2 * out_at(); }
  TEGULA_INLINE constexpr int shared_at() const { return keys_at() + stages * 2 * kKeys * dim * 2; }
  TEGULA_INLINE constexpr int shared_bytes() const { return shared_at() + kSharedBytes; }
};

TEGULA_INLINE constexpr WgmmaShape wgmma_shape(int dim, int groups) {
  return {dim, groups, dim == 64 ? 4 : 2};
}

// Keys or values, and whether they move along with heads and batch entries: others are shared.
struct WgmmaTiles {
  TensorMap map;
  bool heads, batches;
};

struct AttentionWgmmaParams {
  WgmmaTiles k, v;
  bool boxed;  // keys and values come in boxes; or else k and v are empty, and rows are copied
  AttentionForwardParams forward;
};

}  // namespace tegula
