// Rows of numbers become the operands of the tile products.
#pragma once

#include "../simd/gemm.inl"

namespace tegula {
namespace {

TEGULA_INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
TEGULA_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class C>
TEGULA_INLINE void fill(C* p, int64_t count, C value) {
  for (int64_t i = 0; i < count; ++i) p[i] = value;
}
template <class C>
TEGULA_INLINE void add(C* total, const C* part, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes<C>) store(total + i, load(total + i) + load(part + i));
}

template <class C>
TEGULA_INLINE void copy(const C* from, C* to, int64_t count) {
  __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(C));
}

// kLanes<C> numbers from p on, zeros behind the first `count`.
template <class C, class T>
TEGULA_INLINE Vec<C> load_strided(const T* p, int64_t stride, int64_t count) {
  if constexpr (sizeof(T) <= sizeof(C)) {
    if (stride == 1 && count >= kLanes<C>) return load_as<C>(p);
  }
  alignas(kVectorBytes) C lane[kLanes<C>] = {};
  for (int64_t i = 0; i < kLanes<C> && i < count; ++i) lane[i] = load_one<C>(p + i * stride);
  return load(lane);
}

// The first `count` lanes to p on, each rounded once.
template <class C, class T>
TEGULA_INLINE void store_strided(T* p, int64_t stride, int64_t count, Vec<C> v) {
  if (stride == 1 && count >= kLanes<C>) return store_as<C>(p, v);
  for (int64_t i = 0; i < kLanes<C> && i < count; ++i) store_one<C>(p + i * stride, v[i]);
}

// A vector of sums times `factor`. Adding 0 turns -0 into 0: which of them a sum is depends on
// how often it was folded.
template <class C, class T>
TEGULA_INLINE void write_sums(Vec<C> sums, C factor, T* p, int64_t stride, int64_t count) {
  store_strided<C>(p, stride, count, (sums + C(0)) * factor);
}

// A row of sums, which lies at a multiple of the vector.
template <class T, class C>
TEGULA_INLINE void write_row(const C* sums, C factor, int64_t dim, T* to, int64_t step) {
  int64_t d = 0;
  for (const int64_t whole = step == 1 ? dim - kLanes<C> : -1; d <= whole; d += kLanes<C>) {
    write_sums<C>(load(sums + d), factor, to + d, 1, kLanes<C>);
  }
  for (; d < dim; d += kLanes<C>) {
    write_sums<C>(load(sums + d), factor, to + d * step, step, dim - d);
  }
}

// What a format stores of inputs of type T.
template <class F, class T>
struct Packing {  // numbers, widened
  using Unit = typename F::Unit;

  static constexpr bool kAsStored = sizeof(T) == sizeof(Unit);
  static constexpr bool kInterleaves = false;
  TEGULA_INLINE static Vec<Unit> scaled(Vec<Unit> v, Unit scale) { return v * scale; }
  TEGULA_INLINE static Vec<Unit> row(const T* p, int64_t stride, int64_t count, Unit scale) {
    return load_strided<Unit>(p, stride, count) * scale;
  }
  // Value rows as value_tile reads them; a unit holds one key.
  TEGULA_INLINE static Vec<Unit> keys(const T* p, int64_t stride, int64_t count, int64_t, bool) {
    return load_strided<Unit>(p, stride, count);
  }
  // A probe that has seen only finite numbers is clean: 0 times anything else is NaN.
  TEGULA_INLINE static Vec<Unit> probe(Vec<Unit> seen, Vec<Unit> v) { return seen + v * Unit(0); }
  TEGULA_INLINE static bool clean(Vec<Unit> seen) { return !any_lane(seen != Unit(0)); }
  // `unit` without the key that `keep` (bit 0) leaves out.
  TEGULA_INLINE static Vec<Unit> without(Vec<Unit> unit, int keep) {
    return keep & 1 ? unit : Vec<Unit>{};
  }
};

#if defined(TEGULA_ISA_BF16)
template <>
struct Packing<DotFormat, BFloat16> {  // pairs, as they are
  using Unit = uint32_t;

  // Pairs along the row. Only the sign of the scale goes into q: its size would cost a
  // rounding, and is applied to the scores.
  static constexpr bool kAsStored = true;
  static constexpr bool kInterleaves = true;
  TEGULA_INLINE static Vec<Unit> scaled(Vec<Unit> v, float scale) {
    return v ^ (scale < 0 ? 0x80008000u : 0u);
  }
  TEGULA_INLINE static Vec<Unit> row(const BFloat16* p, int64_t stride, int64_t count,
                                     float scale) {
    if (stride == 1 && count >= 2 * kLanes<Unit>) {
      return scaled(load_unaligned(reinterpret_cast<const Unit*>(p)), scale);
    }
    alignas(kVectorBytes) uint16_t lane[2 * kLanes<Unit>] = {};
    for (int64_t i = 0; i < 2 * kLanes<Unit> && i < count; ++i) lane[i] = p[i * stride].bits;
    Vec<Unit> pairs;
    __builtin_memcpy(&pairs, lane, sizeof pairs);
    return scaled(pairs, scale);
  }
  // Pairs across two keys: the first key's number in the low half.
  TEGULA_INLINE static Vec<Unit> keys(const BFloat16* p, int64_t stride, int64_t count,
                                      int64_t key_stride, bool second) {
    const auto bits = [&](const BFloat16* q) {
      if (stride == 1 && count >= kLanes<Unit>) {
        return __builtin_convertvector(*reinterpret_cast<const UnalignedBits16*>(q), Vec<Unit>);
      }
      Vec<Unit> lanes{};
      for (int64_t i = 0; i < kLanes<Unit> && i < count; ++i) lanes[i] = q[i * stride].bits;
      return lanes;
    };
    const Vec<Unit> low = bits(p);
    return second ? low | (bits(p + key_stride) << 16) : low;
  }
  // Two vectors of such pairs, whose quarters alternate: low has the even ones.
  TEGULA_INLINE static void interleave(const BFloat16* p, int64_t key_stride, bool second,
                                       Vec<Unit>& low, Vec<Unit>& high) {
    const __m512i first = _mm512_loadu_si512(p);
    const __m512i next = second ? _mm512_loadu_si512(p + key_stride) : __m512i{};
    low = reinterpret_cast<Vec<Unit>>(_mm512_unpacklo_epi16(first, next));
    high = reinterpret_cast<Vec<Unit>>(_mm512_unpackhi_epi16(first, next));
  }
  // Two vectors of sums to that order, and back.
  TEGULA_INLINE static void alternate(Vec<float>& low, Vec<float>& high) {
    const Vec<float> a = low, b = high;
    low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    high =
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
  TEGULA_INLINE static void follow(Vec<float>& low, Vec<float>& high) {
    const Vec<float> a = low, b = high;
    low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    high =
        __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  }
  // An exponent of ones carries into the sign's place.
  TEGULA_INLINE static Vec<Unit> probe(Vec<Unit> seen, Vec<Unit> v) {
    return seen | ((v & 0x7F807F80u) + 0x00800080u);
  }
  TEGULA_INLINE static bool clean(Vec<Unit> seen) { return !any_lane(seen & 0x80008000u); }
  TEGULA_INLINE static Vec<Unit> without(Vec<Unit> unit, int keep) {
    return unit & ((keep & 1 ? 0xFFFFu : 0u) | (keep & 2 ? 0xFFFF0000u : 0u));
  }
};
#endif

// kLanes rows, given by their addresses (null: a row of zeros; so are those behind it), become
// columns: packed[u][lane] for u in [0, units), `packed` stepping `stride` from u to u + 1.
template <class F, class T>
TEGULA_NOINLINE void pack_columns(const T* const* rows, int64_t element_stride, int64_t dim,
                                  typename F::Compute scale, typename F::Unit* packed,
                                  int64_t stride) {
  using Unit = typename F::Unit;
  constexpr int kN = kLanes<Unit>;
  constexpr int kValues = kN * F::kUnitValues;
  const int64_t units = (dim + F::kUnitValues - 1) / F::kUnitValues;
  int64_t u = 0;
  if constexpr (Packing<F, T>::kAsStored) {
    int count = 0;
    while (count < kN && rows[count] != nullptr) ++count;
    const Vec<Unit> keep = bits_as<Unit>(lane_numbers<Int<Unit>>() < Int<Unit>(count));
    for (; element_stride == 1 && count > 0 && u + kN <= dim / F::kUnitValues; u += kN) {
      Vec<Unit> block[kN];
      load_transposed<Unit>(
          [&](int i) { return reinterpret_cast<const Unit*>(rows[i < count ? i : count - 1]) + u; },
          block);
      TEGULA_UNROLL(16)
      for (int i = 0; i < kN; ++i) {
        const Vec<Unit> column = Packing<F, T>::scaled(block[i], scale);
        store(packed + (u + i) * stride,
              bits_as<Unit>(bits_as<UInt<Unit>>(column) & bits_as<UInt<Unit>>(keep)));
      }
    }
  }
  for (; u < units; u += kN) {
    const int64_t first = u * F::kUnitValues;
    alignas(kVectorBytes) Unit lanes[kN][kN];
    for (int i = 0; i < kN; ++i) {
      store(lanes[i], rows[i] == nullptr
                          ? Vec<Unit>{}
                          : Packing<F, T>::row(rows[i] + first * element_stride, element_stride,
                                               smaller(kValues, dim - first), scale));
    }
    Vec<Unit> block[kN];
    TEGULA_UNROLL(16)
    for (int i = 0; i < kN; ++i) block[i] = load(lanes[i]);
    transpose<Unit>(block);
    for (int i = 0; i < kN && u + i < units; ++i) store(packed + (u + i) * stride, block[i]);
  }
}

// A row as it lies, in units padded with zeros to whole vectors.
template <class F, class T>
TEGULA_INLINE void pack_row(const T* row, int64_t element_stride, int64_t dim,
                            typename F::Compute scale, typename F::Unit* packed) {
  using Unit = typename F::Unit;
  constexpr int kValues = kLanes<Unit> * F::kUnitValues;
  for (int64_t d = 0; d < dim; d += kValues) {
    store(packed + d / F::kUnitValues,
          Packing<F, T>::row(row + d * element_stride, element_stride, dim - d, scale));
  }
}

}  // namespace
}  // namespace tegula
