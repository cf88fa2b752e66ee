// Words of aarch64: 16-byte vectors, 32 registers, fused multiply-add.
#pragma once

#include <cstdint>

namespace tegula {
namespace {

inline constexpr int kVectorBytes = 16;
inline constexpr bool kHasFma = true;
inline constexpr int kBlockVectors = 3;
inline constexpr int kScoreRows = 8;
inline constexpr int kGroupRows = 4;
inline constexpr int kAccumulators = 16;

}  // namespace
}  // namespace tegula
