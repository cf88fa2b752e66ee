// The two register-blocked products of attention.
//
// Both read one operand as broadcasts and the other as vectors, and hold a tile of
// accumulators in registers. Each accumulator is one chain of multiply-adds in the order
// of the reduced axis, so a result's bits do not depend on the shape of the tile.
// They stay functions of their own: inlined among other code, compilers run out of
// registers and spill operands inside the loop.
#pragma once

#include "vec.h"

namespace tegula {
namespace {

// How numbers are multiplied. A unit is what one lane of one multiply-add consumes:
// a number, or a pair of bfloat16 for the dot instruction.
template <class T>
struct PlainFormat {
  using Compute = T;
  using Unit = T;
  static constexpr int kUnitValues = 1;

  TEGULA_INLINE static Vec<T> multiply_add(Vec<T> sum, Vec<T> a, Vec<T> b) { return sum + a * b; }
  // The unit that holds kUnitValues vectors of numbers.
  TEGULA_INLINE static Vec<T> unit_of(const Vec<T>* v) { return v[0]; }
  // `count` consecutive numbers, a multiple of the lanes, as consecutive units.
  TEGULA_INLINE static void units_of(const T* numbers, T* units, int count) {
    for (int i = 0; i < count; i += kLanes<T>) store(units + i, load(numbers + i));
  }
};

#if defined(TEGULA_ISA_BF16)
struct DotFormat {
  using Compute = float;
  using Unit = uint32_t;  // two bfloat16, the first in the low half
  static constexpr int kUnitValues = 2;

  TEGULA_INLINE static Vec<float> multiply_add(Vec<float> sum, Vec<uint32_t> a, Vec<uint32_t> b) {
    return reinterpret_cast<Vec<float>>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                         reinterpret_cast<__m512bh>(a),
                                                         reinterpret_cast<__m512bh>(b)));
  }
  TEGULA_INLINE static Vec<uint32_t> unit_of(const Vec<float>* v) {
    // Both vectors' bfloat16 one after the other, then lane by lane.
    typedef uint16_t Words __attribute__((vector_size(64)));
    const Words words = reinterpret_cast<Words>(
        _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(v[1]), reinterpret_cast<__m512>(v[0])));
    constexpr Words kInterleave = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return reinterpret_cast<Vec<uint32_t>>(_mm512_permutexvar_epi16(
        reinterpret_cast<__m512i>(kInterleave), reinterpret_cast<__m512i>(words)));
  }
  TEGULA_INLINE static void units_of(const float* numbers, uint32_t* units, int count) {
    for (int i = 0; i < count; i += 16) {
      const __m256bh words = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(load(numbers + i)));
      __builtin_memcpy(units + i / 2, &words, sizeof words);
    }
  }
};
#endif

template <int kNumber>
struct Constant {
  static constexpr int value = kNumber;
};

template <class Unit>
TEGULA_INLINE Vec<Unit> broadcast_from(const char* p) {
  Unit unit;
  __builtin_memcpy(&unit, p, sizeof unit);
  return broadcast(unit);
}

// out[r][c] = sum over u of rows[r][u] * columns[u][c], for kRows rows and kVectors
// vectors of columns. `rows` steps row_bytes from row to row; best[c] becomes the
// largest of itself and the column's results.
template <class F, int kRows, int kVectors>
TEGULA_NOINLINE void score_tile(const char* __restrict rows, int64_t row_bytes, int64_t units,
                                const typename F::Unit* __restrict columns, int64_t column_stride,
                                typename F::Compute* __restrict out, int64_t out_stride,
                                Vec<typename F::Compute>* best) {
  using C = typename F::Compute;
  using Unit = typename F::Unit;
  Vec<C> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) sum[r][j] = Vec<C>{};
  }
  TEGULA_UNROLL(2)
  for (int64_t u = 0; u < units; ++u) {
    Vec<Unit> column[kVectors];
    TEGULA_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      column[j] = load(columns + u * column_stride + j * kLanes<Unit>);
    }
    TEGULA_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const Vec<Unit> row =
          broadcast_from<Unit>(rows + r * row_bytes + u * static_cast<int64_t>(sizeof(Unit)));
      TEGULA_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) sum[r][j] = F::multiply_add(sum[r][j], row, column[j]);
    }
  }
  TEGULA_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    TEGULA_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      store(out + r * out_stride + j * kLanes<C>, sum[r][j]);
      best[j] = max_of(best[j], sum[r][j]);
    }
  }
}

// sum[r][d] += sum over u of weights[u][r] * values[u][d]; weights step by weight_step from
// unit to unit and by row_step from row to row.
template <class F, int kRows, int kVectors>
TEGULA_INLINE void accumulate(Vec<typename F::Compute> (&sum)[kRows][kVectors],
                              const typename F::Unit* __restrict weights, int64_t weight_step,
                              int64_t row_step, const typename F::Unit* __restrict values,
                              int64_t value_stride, int64_t units) {
  using Unit = typename F::Unit;
  TEGULA_UNROLL(2)
  for (int64_t u = 0; u < units; ++u) {
    Vec<Unit> value[kVectors];
    TEGULA_UNROLL(8)
    for (int j = 0; j < kVectors; ++j) {
      value[j] = load_unaligned(values + u * value_stride + j * kLanes<Unit>);
    }
    TEGULA_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const Vec<Unit> weight = broadcast(weights[u * weight_step + r * row_step]);
      TEGULA_UNROLL(8)
      for (int j = 0; j < kVectors; ++j) sum[r][j] = F::multiply_add(sum[r][j], weight, value[j]);
    }
  }
}

// out[r][d] = out[r][d] * scale[r] + the sum above, for kRows rows and kVectors vectors of d.
template <class F, int kRows, int kVectors>
TEGULA_NOINLINE void value_tile(const typename F::Unit* __restrict weights, int64_t weight_step,
                                int64_t row_step, const typename F::Unit* __restrict values,
                                int64_t value_stride, int64_t units,
                                typename F::Compute* __restrict out, int64_t out_stride,
                                const typename F::Compute* __restrict scale) {
  using C = typename F::Compute;
  Vec<C> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) {
      sum[r][j] = opaque(load(out + r * out_stride + j * kLanes<C>) * scale[r]);
    }
  }
  accumulate<F>(sum, weights, weight_step, row_step, values, value_stride, units);
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) store(out + r * out_stride + j * kLanes<C>, sum[r][j]);
  }
}

// out[r][d] += the sum above, which starts from 0: short chains round less.
template <class F, int kWeightStep, int kRowStep, int kRows, int kVectors>
TEGULA_NOINLINE void gradient_tile(const typename F::Unit* __restrict weights,
                                   const typename F::Unit* __restrict values, int64_t value_stride,
                                   int64_t units, typename F::Compute* __restrict out,
                                   int64_t out_stride) {
  using C = typename F::Compute;
  Vec<C> sum[kRows][kVectors] = {};
  accumulate<F>(sum, weights, kWeightStep, kRowStep, values, value_stride, units);
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) {
      C* at = out + r * out_stride + j * kLanes<C>;
      store(at, load(at) + sum[r][j]);
    }
  }
}

// Vectors of d that a value tile of kRows rows covers.
template <int kRows>
inline constexpr int kValueVectors = kAccumulators / kRows < 8 ? kAccumulators / kRows : 8;

// Calls tile(first, vectors as a constant) for panels that cover `vectors` vectors: the
// widest first, halves of it for the rest.
template <int kWidth, class Tile>
TEGULA_INLINE void for_panels(int64_t first, int64_t vectors, Tile&& tile) {
  for (; first + kWidth <= vectors; first += kWidth) tile(first, Constant<kWidth>{});
  if constexpr (kWidth > 1) {
    if (first < vectors) for_panels<(kWidth + 1) / 2>(first, vectors, tile);
  }
}

}  // namespace
}  // namespace tegula
