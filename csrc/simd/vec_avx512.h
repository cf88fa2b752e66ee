// Words of x86-64-v4: 64-byte vectors, 32 registers. With TEGULA_ISA_BF16 also the
// bfloat16 dot instruction.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tegula {
namespace {

inline constexpr int kVectorBytes = 64;
inline constexpr bool kHasFma = true;
inline constexpr int kBlockVectors = 3;
inline constexpr int kScoreRows = 8;
inline constexpr int kGroupRows = 8;
inline constexpr int kAccumulators = 16;

}  // namespace
}  // namespace tegula
