// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). Every dropout decision of the package
// is a pure function of the seed and of where the element stands, so it does not
// depend on tiles, threads, instruction sets or devices:
//
//   element (lead, row, column) of an array (..., rows, columns)
//   counter = (column / 4, row, lead low word, lead high word), key = seed
//   the element is kept when word column % 4 of the result >= threshold
//
// For attention lead counts (batch, head), row is the query and column the key.
#pragma once

#include <cstdint>

#include "macros.h"

namespace tegula {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

struct PhiloxWords {
  uint32_t word[4];
};

TEGULA_INLINE PhiloxWords philox(uint64_t seed, uint64_t lead, uint32_t row, uint32_t column_quad) {
  uint32_t c0 = column_quad, c1 = row;
  uint32_t c2 = static_cast<uint32_t>(lead), c3 = static_cast<uint32_t>(lead >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kPhiloxMultiplier0) * c0;
    const uint64_t p1 = static_cast<uint64_t>(kPhiloxMultiplier1) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// What a dropout call needs: words below `threshold` drop their element, kept
// elements are multiplied by `scale`. p = 1 drops everything (scale 0).
struct Dropout {
  double p = 0.0;
  uint64_t seed = 0;
  const uint64_t* device_seed = nullptr;  // where a GPU's kernels read it instead; null: nowhere
  uint32_t threshold = 0;
  double scale = 1.0;

  TEGULA_INLINE bool active() const { return p > 0.0; }
  // For kernels of a GPU: a graph that is replayed finds the seed of its turn.
  TEGULA_INLINE uint64_t current_seed() const { return device_seed ? *device_seed : seed; }
};

TEGULA_INLINE Dropout make_dropout(double p, uint64_t seed) {
  Dropout dropout;
  dropout.p = p;
  dropout.seed = seed;
  const double threshold = p * 4294967296.0;
  dropout.threshold = threshold >= 4294967295.0 ? 0xFFFFFFFFu : static_cast<uint32_t>(threshold);
  dropout.scale = p < 1.0 ? 1.0 / (1.0 - p) : 0.0;
  return dropout;
}

}  // namespace tegula
