// Words of x86-64-v3: 32-byte vectors, 16 registers, FMA and half conversion.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tegula {
namespace {

inline constexpr int kVectorBytes = 32;
inline constexpr bool kHasFma = true;
inline constexpr int kBlockVectors = 3;
inline constexpr int kScoreRows = 4;
inline constexpr int kGroupRows = 4;
inline constexpr int kAccumulators = 12;

}  // namespace
}  // namespace tegula
