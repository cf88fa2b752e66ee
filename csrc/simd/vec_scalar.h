// Words of the baseline: 16-byte vectors that every compiler can lower, without
// fused multiply-add. On x86-64 this is SSE2.
#pragma once

#include <cstdint>

namespace tegula {
namespace {

inline constexpr int kVectorBytes = 16;
inline constexpr bool kHasFma = false;
// Register tiles that fit 16 registers with room for a product: see gemm.inl.
inline constexpr int kBlockVectors = 2;  // query vectors of a block
inline constexpr int kScoreRows = 4;     // keys of a score tile
inline constexpr int kGroupRows = 4;     // rows of an output tile
inline constexpr int kAccumulators = 8;  // of an output tile

}  // namespace
}  // namespace tegula
