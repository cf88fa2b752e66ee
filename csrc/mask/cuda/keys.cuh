// Some keys of a query's row as bits, the first key in the lowest one.
#pragma once

#include <cstring>

#include "../../cuda/device.cuh"

namespace tegula {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

// A row of (B, H, Lq).
struct QueryRow {
  int64_t b, h, i;

  TEGULA_DEVICE int64_t offset(const View& view) const {
    return b * view.stride[0] + h * view.stride[1] + i * view.stride[2];
  }
};

TEGULA_DEVICE QueryRow query_row(const View& array, int64_t row) {
  const int64_t heads = array.shape[1], queries = array.shape[2];
  const int64_t outer = row / queries;
  return {outer / heads, outer % heads, row % queries};
}

// The keys of kN from `column` on that lie in [lo, hi).
template <int kN>
TEGULA_DEVICE uint32_t keys_within(int64_t column, int64_t lo, int64_t hi) {
  static_assert(kN < 32);
  const auto below = [&](int64_t bound) {
    const int64_t count = max(int64_t{0}, min(bound - column, int64_t{kN}));
    return (1u << static_cast<int>(count)) - 1;
  };
  return below(hi) & ~below(lo);
}

// The bytes of a word that are not 0, as 4 bits.
TEGULA_DEVICE uint32_t nonzero_bytes(uint32_t word) {
  constexpr uint32_t kLowBits = 0x7F7F7F7Fu;
  const uint32_t found = ((((word & kLowBits) + kLowBits) | word) & ~kLowBits) >> 7;
  return found * 0x01020408u >> 24 & 15;  // bits 0, 8, 16 and 24 meet in the top byte
}

// Of kN keys, those whose byte is not 0, where `inside` says that the row has them.
template <int kN>
TEGULA_DEVICE uint32_t load_keys(const uint8_t* keys, int64_t stride, uint32_t inside) {
  constexpr uint32_t kAll = (1u << kN) - 1;
  uint32_t bits = 0;
  const uintptr_t address = reinterpret_cast<uintptr_t>(keys);
  if constexpr (kN >= 4) {
    if (stride == 1 && inside == kAll && address % 4 == 0) {
      uint32_t words[kN / 4];
      if (kN == 16 && address % 16 == 0) {
        const uint4 four = *reinterpret_cast<const uint4*>(keys);
        memcpy(words, &four, sizeof words);
      } else {
#pragma unroll
        for (int i = 0; i < kN / 4; ++i) words[i] = reinterpret_cast<const uint32_t*>(keys)[i];
      }
#pragma unroll
      for (int i = 0; i < kN / 4; ++i) bits |= nonzero_bytes(words[i]) << (4 * i);
      return bits;
    }
  }
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    if (inside >> j & 1) bits |= (keys[j * stride] != 0 ? 1u : 0u) << j;
  }
  return bits;
}

}  // namespace tegula
