// Products of tiles, as all backward kernels form them: a product of two tiles (scores, and
// grad_out v^T), and weights in registers times the rows of a tile.
//
// Fragments c[m][n] hold, as ptx.cuh says, rows 16 m + g and 16 m + g + 8, columns 8 n + 2 t and
// 8 n + 2 t + 1: half h and side e at c[m][n][2 h + e]. Weights are the same of 16 bits,
// w[m][n][h] with both sides.
#pragma once

#include "backward_params.h"
#include "tile.cuh"

namespace tegula {

template <int kM, int kN>
TEGULA_DEVICE void set_zero(float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
    }
  }
}

// c += rows [first, first + 16 kM) of tile `a`, times rows [0, 8 kN) of tile `b` transposed.
template <class T, int kDim, int kM, int kN>
TEGULA_DEVICE void multiply_tiles(float (&c)[kM][kN][4], uint32_t a, int first, uint32_t b) {
  const int lane = threadIdx.x % 32;
  const uint32_t left_place = a + tile_offset<kDim>(first + lane % 16, lane / 16);
  const uint32_t right_place = b + tile_offset<kDim>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_matrices(left[m], fragment<kDim>(left_place, m * 16, k));
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      load_matrices(right, fragment<kDim>(right_place, n * 8, k));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add(c[m][n], left[m], right[0], right[1], T{});
        multiply_add(c[m][n + 1], left[m], right[2], right[3], T{});
      }
    }
  }
}

// sums += weights times rows [0, 8 kN) of a tile.
template <class T, int kDim, int kM, int kN>
TEGULA_DEVICE void multiply_weights(float (&sums)[kM][kDim / 8][4],
                                    const uint32_t (&weights)[kM][kN][2], uint32_t tile) {
  const int lane = threadIdx.x % 32;
  const uint32_t place = tile + tile_offset<kDim>(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kN; k += 2) {
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t right[4];
      load_matrices_transposed(right, fragment<kDim>(place, k * 8, n / 2));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const uint32_t left[4] = {weights[m][k][0], weights[m][k][1], weights[m][k + 1][0],
                                  weights[m][k + 1][1]};
        multiply_add(sums[m][n], left, right[0], right[1], T{});
        multiply_add(sums[m][n + 1], left, right[2], right[3], T{});
      }
    }
  }
}

// Calls make(m, n, products..., made) for each fragment: 2 rows by 2 columns of the products given.
// With many options that is long code, which is written once then, and numbers lie in local memory.
template <bool kRolled, int kM, int kN, class X, int kSize, class Make, class... Products>
TEGULA_DEVICE void make_fragments(X (&made)[kM][kN][kSize], Make make,
                                  const Products&... products) {
  if constexpr (!kRolled) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int m = 0; m < kM; ++m) make(m, n, products[m][n]..., made[m][n]);
    }
  } else {
    struct {
      float of[sizeof...(Products)][4];
    } numbers[kM][kN];
    X results[kM][kN][kSize];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int which = 0;
          ((numbers[m][n].of[which++][i] = products[m][n][i]), ...);
        }
      }
    }
#pragma unroll 1
    for (int i = 0; i < kM * kN; ++i) {
      const int m = i / kN, n = i % kN;
      if constexpr (sizeof...(Products) == 1) {
        make(m, n, numbers[m][n].of[0], results[m][n]);
      } else {
        make(m, n, numbers[m][n].of[0], numbers[m][n].of[1], results[m][n]);
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) made[m][n][i] = results[m][n][i];
      }
    }
  }
}

// --- numbers of rows ------------------------------------------------------------------------

// In shared memory, of each of kRows rows. Kernels without options leave `rests` out: only scores
// with options are so far from 0.
template <int kRows>
struct RowNumbers {
  float shifts[kRows], rests[kRows], deltas[kRows];
};
static_assert(sizeof(RowNumbers<kStep>) == number_bytes(kStep));

// Copies them, of rows that lie at `first` and are there as far as `count` says.
template <bool kRich, int kRows>
TEGULA_DEVICE void load_numbers(uint32_t to, const GradientRows& rows, int64_t first, int count) {
  constexpr int kQuads = kRows / 4;
  for (int i = threadIdx.x; i < 3 * kQuads; i += blockDim.x) {
    const int which = i / kQuads, row = i % kQuads * 4;
    if (which == 1 && !kRich) continue;
    const void* numbers = which == 0 ? rows.shifts : which == 1 ? rows.rests : rows.deltas;
    const float* from = static_cast<const float*>(numbers) + first;
    copy_async_16(to + i * 16, row < count ? from + row : from, row < count);
  }
}

// --- what is hidden does not exist ------------------------------------------------------------
//
// A hidden pair has a weight of 0, and 0 times NaN is NaN. So where some pair is hidden, the rows
// that weights are about to meet are searched for numbers that are not finite. If there are any, a
// rare case, they are added by hand to the sums that see them, and zeros take their place in the
// tile. All other sums keep the bits that they would have had.

TEGULA_DEVICE uint32_t exponent_bits(Half) { return 0x7C00u; }
TEGULA_DEVICE uint32_t exponent_bits(BFloat16) { return 0x7F80u; }

// Whether the number in the low half is not finite.
template <class T>
TEGULA_DEVICE bool is_unclean(uint32_t bits) {
  return (bits & exponent_bits(T{})) == exponent_bits(T{});
}

// Whether this thread's share of some rows of a tile holds such a number. Threads number from 0: of
// the block, or of those that take part.
template <class T, int kDim>
TEGULA_DEVICE bool finds_unclean(uint32_t tile, int rows, int thread = opaque(threadIdx.x),
                                 int threads = blockDim.x) {
  // Both halves of a word at once: an exponent of ones carries into the sign, which was cleared.
  const uint32_t exponents = exponent_bits(T{}) * 0x10001u;
  const uint32_t lowest = exponents & ~(exponents << 1);
  uint32_t carries = 0;
  for (int i = thread; i < rows * (kDim / kChunk); i += threads) {
    const uint4 chunk = load_shared_128(tile + i * 16);
    carries |= (chunk.x & exponents) + lowest;
    carries |= (chunk.y & exponents) + lowest;
    carries |= (chunk.z & exponents) + lowest;
    carries |= (chunk.w & exponents) + lowest;
  }
  return (carries & 0x80008000u) != 0;
}

// Sets them to zero, in this thread's share.
template <class T, int kDim>
TEGULA_DEVICE void clear_unclean(uint32_t tile, int rows, int thread = opaque(threadIdx.x),
                                 int threads = blockDim.x) {
  for (int i = thread; i < rows * (kDim / 2); i += threads) {
    uint32_t pair = load_shared_32(tile + i * 4);
    if (is_unclean<T>(pair)) pair &= 0xFFFF0000u;
    if (is_unclean<T>(pair >> 16)) pair &= 0x0000FFFFu;
    store_shared_32(tile + i * 4, pair);
  }
}

template <class T>
TEGULA_DEVICE float widen_bits(uint32_t bits) {
  return widen(T{static_cast<uint16_t>(bits)});
}

// Adds weight times number for each such number of the tile and each row of sums that sees it:
// visible(m, half, row of the tile) says which do.
template <class T, int kDim, int kM, int kN, class Visible>
TEGULA_DEVICE void add_unclean(float (&sums)[kM][kDim / 8][4], const uint32_t (&weights)[kM][kN][2],
                               uint32_t tile, Visible visible) {
  const int lane = opaque(threadIdx.x) % 32;
  uint32_t copy[kN][kM][2];  // indexed below by numbers known at run time only
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int m = 0; m < kM; ++m) copy[n][m][0] = weights[m][n][0], copy[n][m][1] = weights[m][n][1];
  }
#pragma unroll 1
  for (int row = 0; row < kN * 8; ++row) {
    float weight[kM][2];
    bool sees[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // The lane of the same rows that holds this column.
        const int holder = (lane & ~3) | (row % 8 / 2);
        const uint32_t pair = __shfl_sync(0xFFFFFFFFu, copy[row / 8][m][h], holder);
        weight[m][h] = widen_bits<T>(row % 2 == 0 ? pair : pair >> 16);
        sees[m][h] = visible(m, h, row);
      }
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const uint32_t pair = load_shared_32(tile + tile_offset<kDim>(row, n) + lane % 4 * 4);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t bits = pair >> 16 * e;
        if (!is_unclean<T>(bits)) continue;
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (sees[m][h]) sums[m][n][2 * h + e] += weight[m][h] * widen_bits<T>(bits);
          }
        }
      }
    }
  }
}

// --- results --------------------------------------------------------------------------------

// Sums times `factor`, rounded, to rows [first, first + 16 kM) of a tile.
template <class T, int kDim, int kM>
TEGULA_DEVICE void round_to_tile(const float (&sums)[kM][kDim / 8][4], float factor, uint32_t tile,
                                 int first) {
  const int lane = opaque(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first + m * 16 + h * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const float low = sums[m][n][2 * h] * factor, high = sums[m][n][2 * h + 1] * factor;
        store_shared_32(tile + tile_offset<kDim>(row, n) + lane % 4 * 4, pack(low, high, T{}));
      }
    }
  }
}

// Writes rows [0, rows) of a tile, row r to `row_at(r)`: the reverse of load_tile.
template <int kDim, class RowAt>
TEGULA_DEVICE void store_tile(uint32_t tile, int rows, RowAt row_at, int size, int64_t step,
                              bool chunks, int thread = opaque(threadIdx.x),
                              int threads = blockDim.x) {
  constexpr int kChunks = kDim / kChunk;
  if (chunks) {
    for (int i = thread; i < rows * kChunks; i += threads) {
      const int row = i / kChunks, chunk = i % kChunks;
      if (chunk * kChunk >= size) continue;
      *reinterpret_cast<uint4*>(row_at(row) + chunk * kChunk) =
          load_shared_128(tile + tile_offset<kDim>(row, chunk));
    }
    return;
  }
#pragma unroll 1
  for (int i = thread; i < rows * kDim; i += threads) {
    const int row = i / kDim, column = i % kDim;
    if (column >= size) continue;
    row_at(row)[column * step] =
        load_shared(tile + tile_offset<kDim>(row, column / kChunk) + column % kChunk * 2);
  }
}

// --- rows of a unit --------------------------------------------------------------------------

// Head and query of rows near `first`, by 32-bit divisions: 64-bit ones take a hundred
// instructions.
class RowPlaces {
 public:
  TEGULA_DEVICE RowPlaces(const Unit& unit, int64_t first)
      : unit_(unit),
        query_(unit.group == 1 ? first : first / unit.group),
        head_(static_cast<uint32_t>(unit.group == 1 ? 0 : first - query_ * unit.group)),
        left_(unit.rows - first) {}

  // Row first + i of a view, or null where it does not exist.
  template <class T>
  TEGULA_DEVICE T* row_of(const Slab<T>& slab, int i) const {
    if (i >= left_) return nullptr;
    if (unit_.group == 1) return slab.row(unit_.first_head, query_ + i);
    const uint32_t group = static_cast<uint32_t>(unit_.group), at = head_ + i;
    return slab.row(unit_.first_head + at % group, query_ + at / group);
  }
  TEGULA_DEVICE int rows(int most) const { return static_cast<int>(left_ < most ? left_ : most); }

 private:
  const Unit unit_;
  int64_t query_;
  uint32_t head_;
  int64_t left_;
};

}  // namespace tegula
