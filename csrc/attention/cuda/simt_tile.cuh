// Products of tiles by fused multiply-adds, for types and head sizes that tensor cores do not take.
//
// 256 threads stand in a square of 16 by 16. Of a tile of pairs (left row, right row) thread (y, x)
// owns the left rows y * kRows + i and the right rows 4 x + j, and of sums over right rows the
// columns 4 x + j and 64 + 4 x + j. Operands pass through shared memory in slabs, in the type of
// sums; while one slab is multiplied the next one travels to registers.
//
// A number is the same chain of operations whatever kRows is and wherever its tile lies.
#pragma once

#include <type_traits>

#include "../../cuda/ptx.cuh"
#include "rounded.cuh"
#include "simt_shape.h"

namespace tegula {

template <class T>
struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) Quad {
  T value[kRun];
};

// Of an input, which nothing writes to meanwhile.
template <class T>
TEGULA_DEVICE Quad<T> load_quad(const T* from) {
  using Word = std::conditional_t<sizeof(T) == 2, uint2, uint4>;
  constexpr int kWords = sizeof(Quad<T>) / sizeof(Word);
  union {
    Word words[kWords];
    Quad<T> quad;
  };
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __ldg(reinterpret_cast<const Word*>(from) + i);
  return quad;
}

// Sizes by the type of sums: a row of a slab is 128 bytes.
template <class C>
inline constexpr int kSlabDim = 128 / sizeof(C);
template <class C>
inline constexpr int kSlabRows = 64 / sizeof(C);  // right rows of a slab of values
template <class C>
inline constexpr int kPad = 16 / sizeof(C);  // puts rows into different banks

// What a block multiplies, in shared memory. `pairs` is what a product left, for sums to use.
template <class C, int kRows>
struct SimtTiles {
  static constexpr int kLeftRows = kSimtSide * kRows;
  struct Sides {
    C left[kLeftRows][kSlabDim<C> + kPad<C>];
    C right[kRightRows][kSlabDim<C> + kPad<C>];  // row 4 x + j stands at 16 j + x
  };
  union {
    Sides sides;
    C values[kSlabRows<C>][kColumns];
    Quad<C> own[kRows][kSimtThreads];
  };
  C pairs[kLeftRows][kRightRows + kPad<C>];

  // The thread's pairs of its left row i.
  TEGULA_DEVICE Quad<C>& own_pairs(int i) {
    const int x = threadIdx.x % kSimtSide, y = threadIdx.x / kSimtSide;
    return *reinterpret_cast<Quad<C>*>(&pairs[y * kRows + i][x * kRun]);
  }
  // As much memory of the thread's own, while `sides` and `values` are not in use.
  TEGULA_DEVICE Quad<C>& own_quad(int i) { return own[i][threadIdx.x]; }
};

// The rows of an operand: `at(r)` points to the first element of the tile's row r; null: zeros.
template <class RowAt>
struct Operand {
  const RowSteps& steps;
  RowAt at;
};
template <class RowAt>
Operand(const RowSteps&, RowAt) -> Operand<RowAt>;

// `count` rows of a view from row `first` on.
template <class T>
TEGULA_DEVICE auto rows_from(const T* row, const RowSteps& steps, int64_t first, int count) {
  row += first * steps.row;
  return Operand{steps, [=, &steps](int r) { return r < count ? row + r * steps.row : nullptr; }};
}

// kRows rows of a slab on their way to shared memory. Quads travel through a thread's registers:
// fetched early, put late. Where they lie is computed each time: kept, it would take registers from
// the sums. Elements that do not lie in quads are read when they are put.
template <class T, int kRows, int kRowQuads>
class Travelling {
 public:
  // Columns from `column` on of the operand's rows from `first_row` on.
  template <class RowAt>
  TEGULA_DEVICE void fetch(const Operand<RowAt>& from, int first_row, int64_t column) {
    if (!from.steps.quads) return;
    const int thread = opaque(threadIdx.x);
    const int64_t begin = column + thread % kRowQuads * kRun;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      quads_[i] = {};
      const T* row = mine(thread, i) && begin < from.steps.size
                         ? from.at(first_row + row_of(thread, i))
                         : nullptr;
      if (row != nullptr) quads_[i] = load_quad(row + begin);
    }
  }

  // The same columns and rows; element c of row r goes to `*to(r, c)`. Returns whether the thread
  // has seen NaN or infinity.
  template <class C, class RowAt, class To>
  TEGULA_DEVICE bool put(const Operand<RowAt>& from, int first_row, int64_t column, To to) const {
    const int thread = opaque(threadIdx.x);
    bool found = false;
    if (from.steps.quads) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (!mine(thread, i)) continue;
        Quad<C> quad;
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          quad.value[j] = widen(quads_[i].value[j]);
          found |= !isfinite(quad.value[j]);
        }
        *reinterpret_cast<Quad<C>*>(to(row_of(thread, i), thread % kRowQuads * kRun)) = quad;
      }
      return found;
    }
#pragma unroll 1
    for (int i = thread; i < kRows * kRowQuads * kRun; i += kSimtThreads) {
      const int r = i / (kRowQuads * kRun), c = i % (kRowQuads * kRun);
      const T* row = from.at(first_row + r);
      const bool there = row != nullptr && column + c < from.steps.size;
      const C x = there ? widen(row[(column + c) * from.steps.column]) : C(0);
      found |= !isfinite(x);
      *to(r, c) = x;
    }
    return found;
  }

 private:
  static constexpr int kCount = (kRows * kRowQuads + kSimtThreads - 1) / kSimtThreads;
  static constexpr int kStep = kSimtThreads / kRowQuads;  // rows

  static TEGULA_DEVICE int row_of(int thread, int i) { return thread / kRowQuads + i * kStep; }
  static TEGULA_DEVICE bool mine(int thread, int i) {
    return kRows % kStep == 0 || row_of(thread, i) < kRows;
  }

  Quad<T> quads_[kCount];
};

// Adds the products of the slabs in tiles.sides.
template <class C, int kRows>
TEGULA_DEVICE void multiply_slabs(const SimtTiles<C, kRows>& tiles, C (&sums)[kRows][kRun]) {
  constexpr int kVector = 16 / sizeof(C);
  struct alignas(16) Vector {
    C value[kVector];
  };
  const int thread = opaque(threadIdx.x), x = thread % kSimtSide, y = thread / kSimtSide;
#pragma unroll 1  // more at a time takes more registers than there are
  for (int at = 0; at < kSlabDim<C>; at += kVector) {
    Vector left[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      left[i] = *reinterpret_cast<const Vector*>(&tiles.sides.left[y * kRows + i][at]);
    }
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const auto right =
          *reinterpret_cast<const Vector*>(&tiles.sides.right[j * kSimtSide + x][at]);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          sums[i][j] = fused(left[i].value[e], right.value[e], sums[i][j]);
        }
      }
    }
  }
}

// sums[i][j] = left row times right row, over all columns. Threads that are not `busy` only carry.
// Other shared memory than tiles.pairs is free when this returns.
template <class T, int kRows, class C, class Left, class Right>
TEGULA_DEVICE void multiply_rows(SimtTiles<C, kRows>& tiles, const Left& left, const Right& right,
                                 bool busy, C (&sums)[kRows][kRun]) {
  auto& sides = tiles.sides;
  Travelling<T, kSimtSide * kRows, kSlabDim<C> / kRun> left_part;
  Travelling<T, kRightRows, kSlabDim<C> / kRun> right_part;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kRun; ++j) sums[i][j] = 0;
  }
  // The first turn only fetches.
#pragma unroll 1
  for (int64_t column = -kSlabDim<C>; column < left.steps.size; column += kSlabDim<C>) {
    const bool there = column >= 0;
    if (there) {
      left_part.template put<C>(left, 0, column, [&](int r, int c) { return &sides.left[r][c]; });
      right_part.template put<C>(right, 0, column, [&](int r, int c) {
        return &sides.right[r % kRun * kSimtSide + r / kRun][c];
      });
      __syncthreads();
    }
    left_part.fetch(left, 0, column + kSlabDim<C>);
    right_part.fetch(right, 0, column + kSlabDim<C>);
    if (!there) continue;
    if (busy) multiply_slabs(tiles, sums);
    __syncthreads();
  }
}

// A pair that is hidden takes part in nothing. It is a negative zero among tiles.pairs, which
// nothing visible is: that adds an exact zero to sums of finite numbers, and is known from a weight
// that became zero where what it would meet is not finite.
template <class C>
TEGULA_DEVICE C hidden_pair() {
  return -C(0);
}
// A number that is no negative zero.
template <class C>
TEGULA_DEVICE C visible_pair(C x) {
  return rounded_sum(x, C(0));
}
TEGULA_DEVICE bool is_hidden_pair(float x) { return __float_as_uint(x) == 0x80000000u; }
TEGULA_DEVICE bool is_hidden_pair(double x) {
  return __double_as_longlong(x) == static_cast<long long>(0x8000000000000000ull);
}

// The thread's own pairs, there and back.
template <int kRows, class C>
TEGULA_DEVICE void put_pairs(SimtTiles<C, kRows>& tiles, const C (&pairs)[kRows][kRun]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    Quad<C> quad;
#pragma unroll
    for (int j = 0; j < kRun; ++j) quad.value[j] = pairs[i][j];
    tiles.own_pairs(i) = quad;
  }
}
template <int kRows, class C>
TEGULA_DEVICE void take_pairs(SimtTiles<C, kRows>& tiles, C (&pairs)[kRows][kRun]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const Quad<C> quad = tiles.own_pairs(i);
#pragma unroll
    for (int j = 0; j < kRun; ++j) pairs[i][j] = quad.value[j];
  }
}

// One bit for each of a thread's pairs (i, j).
TEGULA_DEVICE unsigned pair_bit(int i, int j) { return 1u << (i * kRun + j); }

// Adds the products of tiles.pairs, from right row `first` on, and the slab in tiles.values.
template <bool kWide, int kRows, class C>
TEGULA_DEVICE void add_slab(const SimtTiles<C, kRows>& tiles, int first,
                            C (&sums)[kRows][2 * kRun]) {
  const int thread = opaque(threadIdx.x), x = thread % kSimtSide, y = thread / kSimtSide;
#pragma unroll 1
  for (int k = 0; k < kSlabRows<C>; k += kRun) {
    Quad<C> pairs[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      pairs[i] = *reinterpret_cast<const Quad<C>*>(&tiles.pairs[y * kRows + i][first + k]);
    }
#pragma unroll
    for (int t = 0; t < kRun; ++t) {
#pragma unroll
      for (int half = 0; half < (kWide ? 2 : 1); ++half) {
        const auto values =
            *reinterpret_cast<const Quad<C>*>(&tiles.values[k + t][half * kRightRows + x * kRun]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int j = 0; j < kRun; ++j) {
            C& sum = sums[i][half * kRun + j];
            sum = fused(pairs[i].value[t], values.value[j], sum);
          }
        }
      }
    }
  }
}

// The same without what is hidden.
template <int kRows, class C>
TEGULA_DEVICE void add_visible(const SimtTiles<C, kRows>& tiles, int first,
                               C (&sums)[kRows][2 * kRun]) {
  const int thread = opaque(threadIdx.x), x = thread % kSimtSide, y = thread / kSimtSide;
#pragma unroll 1
  for (int k = 0; k < kSlabRows<C>; ++k) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const C pair = tiles.pairs[y * kRows + i][first + k];
      if (is_hidden_pair(pair)) continue;
#pragma unroll
      for (int j = 0; j < 2 * kRun; ++j) {
        const C value = tiles.values[k][j / kRun * kRightRows + x * kRun + j % kRun];
        sums[i][j] = fused(pair, value, sums[i][j]);
      }
    }
  }
}

// sums += pairs times values, columns [column, column + kColumns) of them, over the first `count`
// right rows. `mixed`: some pair may be hidden. Threads have put their pairs; nobody needs to wait
// for them before. Shared memory is free when this returns.
template <class T, int kRows, class C, class Values>
TEGULA_DEVICE void add_products(SimtTiles<C, kRows>& tiles, const Values& values, int64_t column,
                                int count, bool mixed, bool busy, C (&sums)[kRows][2 * kRun]) {
  const bool wide = values.steps.size - column > kRightRows;
  Travelling<T, kSlabRows<C>, kColumns / kRun> part;
  // The first turn only fetches.
#pragma unroll 1
  for (int first = -kSlabRows<C>; first < count; first += kSlabRows<C>) {
    bool guarded = false;
    if (first >= 0) {
      const bool found = part.template put<C>(values, first, column,
                                              [&](int r, int c) { return &tiles.values[r][c]; });
      guarded = __syncthreads_or(mixed && found);
    }
    if (first + kSlabRows<C> < count) part.fetch(values, first + kSlabRows<C>, column);
    if (first < 0) continue;
    if (busy && guarded) {
      add_visible(tiles, first, sums);
    } else if (busy) {
      wide ? add_slab<true>(tiles, first, sums) : add_slab<false>(tiles, first, sums);
    }
    __syncthreads();
  }
}

// The sum or maximum over the 16 threads of a row, the same in each of them.
template <class C, class Join>
TEGULA_DEVICE C over_row(C x, Join join) {
#pragma unroll
  for (int step = kSimtSide / 2; step > 0; step /= 2) {
    x = join(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  }
  return x;
}

// Writes elements of a row from `column` on.
template <class T, class C>
TEGULA_DEVICE void store_quad(T* row, int64_t column, const RowSteps& steps,
                              const C (&from)[kRun]) {
  if (column >= steps.size) return;
  Quad<T> quad;
#pragma unroll
  for (int j = 0; j < kRun; ++j) narrow(visible_pair(from[j]), quad.value[j]);
  if (steps.quads) {
    *reinterpret_cast<Quad<T>*>(row + column) = quad;
    return;
  }
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    if (column + j < steps.size) row[(column + j) * steps.column] = quad.value[j];
  }
}

}  // namespace tegula
