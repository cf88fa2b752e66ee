// The SIMD vocabulary: every kernel is written on these words and no others.
//
// A Vec<T> is a native vector of kLanes<T> numbers, on which the compiler's own
// operators work (+ - * / and comparisons, which give a lane mask for ?:).
// An instruction set's header says how wide a vector is and how many registers a
// tile may use; where the compiler does not find an instruction by itself, the word
// asks for it. Everything sits in an unnamed namespace: each instruction-set object
// has its own copy and exports none of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../base/dtype.h"
#include "../base/macros.h"
#include "../base/philox.h"

#if defined(TEGULA_ISA_AVX512)
#include "vec_avx512.h"
#elif defined(TEGULA_ISA_AVX2)
#include "vec_avx2.h"
#elif defined(TEGULA_ISA_NEON)
#include "vec_neon.h"
#else
#include "vec_scalar.h"
#endif

namespace tegula {
namespace {

template <class T, int kBytes>
struct VecType {
  typedef T Aligned __attribute__((vector_size(kBytes), may_alias));
  typedef T Unaligned __attribute__((vector_size(kBytes), aligned(1), may_alias));
};

template <class T>
using Vec = typename VecType<T, kVectorBytes>::Aligned;

template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

// Integers as wide as T: what a comparison of Vec<T> gives, and lane numbers.
template <int kSize>
struct IntegerOfSize {
  using Signed = int32_t;
  using Unsigned = uint32_t;
};
template <>
struct IntegerOfSize<8> {
  using Signed = int64_t;
  using Unsigned = uint64_t;
};
template <class T>
using Int = typename IntegerOfSize<sizeof(T)>::Signed;
template <class T>
using UInt = typename IntegerOfSize<sizeof(T)>::Unsigned;

template <class T>
inline constexpr T kInfinity = static_cast<T>(__builtin_inff());

// ---- memory ----

template <class T>
TEGULA_INLINE Vec<T> load(const T* p) {  // p is aligned to the vector
  return *reinterpret_cast<const Vec<T>*>(p);
}
template <class T>
TEGULA_INLINE Vec<T> load_unaligned(const T* p) {
  return *reinterpret_cast<const typename VecType<T, kVectorBytes>::Unaligned*>(p);
}
template <class T>
TEGULA_INLINE void store(T* p, Vec<T> v) {  // p is aligned to the vector
  *reinterpret_cast<Vec<T>*>(p) = v;
}
template <class T>
TEGULA_INLINE void store_unaligned(T* p, Vec<T> v) {
  *reinterpret_cast<typename VecType<T, kVectorBytes>::Unaligned*>(p) = v;
}

// Past the caches: for results that nobody reads soon. p is aligned to the vector;
// call stream_fence() before another thread may look.
template <class T>
TEGULA_INLINE void store_streaming(T* p, Vec<T> v) {
#if defined(TEGULA_ISA_AVX512)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), reinterpret_cast<__m512i>(v));
#elif defined(TEGULA_ISA_AVX2)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(v));
#else
  store(p, v);
#endif
}
TEGULA_INLINE void stream_fence() {
#if defined(TEGULA_ISA_AVX512) || defined(TEGULA_ISA_AVX2)
  _mm_sfence();
#endif
}

// ---- lanes ----

template <class T>
TEGULA_INLINE Vec<T> broadcast(T x) {
  return x - Vec<T>{};
}

template <class T>
TEGULA_INLINE Vec<T> lane_numbers() {
  Vec<T> lanes{};
  for (int i = 0; i < kLanes<T>; ++i) lanes[i] = static_cast<T>(i);
  return lanes;
}

// The bits of v as lanes of another type.
template <class To, class V>
TEGULA_INLINE Vec<To> bits_as(V v) {
  return reinterpret_cast<Vec<To>>(v);
}

// The same bits, of which the compiler knows nothing: keeps it from fusing a product with
// an addition that, in another copy of the code, it would leave alone.
template <class V>
TEGULA_INLINE V opaque(V v) {
#if defined(__aarch64__)
  asm("" : "+w"(v));
#elif defined(TEGULA_ISA_AVX512)
  asm("" : "+v"(v));
#elif defined(__SSE2__)
  asm("" : "+x"(v));
#else
  asm("" : "+m"(v));
#endif
  return v;
}

// The larger number; the second one when either is NaN.
template <class V>
TEGULA_INLINE V max_of(V a, V b) {
  return a > b ? a : b;
}
template <class V>
TEGULA_INLINE V min_of(V a, V b) {
  return a < b ? a : b;
}

template <class V>
TEGULA_INLINE bool any_lane(V mask) {
  unsigned char bytes[sizeof(V)];
  __builtin_memcpy(bytes, &mask, sizeof(V));
  uint64_t word, all = 0;
  for (size_t i = 0; i < sizeof(V); i += 8) {
    __builtin_memcpy(&word, bytes + i, 8);
    all |= word;
  }
  return all != 0;
}

template <size_t... kIndex>
struct Indices {};
template <size_t kCount, size_t... kIndex>
struct MakeIndices : MakeIndices<kCount - 1, kCount - 1, kIndex...> {};
template <size_t... kIndex>
struct MakeIndices<0, kIndex...> {
  using Type = Indices<kIndex...>;
};

// Lane i of the result is lane i ^ kStep.
template <class T, int kStep, size_t... kLane>
TEGULA_INLINE Vec<T> swap_lanes(Vec<T> v, Indices<kLane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(v, v, (kLane ^ kStep)...);
#else
  return __builtin_shuffle(v, Vec<Int<T>>{static_cast<Int<T>>(kLane ^ kStep)...});
#endif
}

template <class T, int kStep = kLanes<T> / 2>
TEGULA_INLINE T max_across(Vec<T> v) {
  using Lanes = typename MakeIndices<kLanes<T>>::Type;
  if constexpr (kStep == 0) {
    return v[0];
  } else {
    return max_across<T, kStep / 2>(max_of(v, swap_lanes<T, kStep>(v, Lanes{})));
  }
}

// Rows of a kLanes x kLanes block become its columns: log2(kLanes) steps, each
// exchanging the half blocks that lie across the diagonal.
template <class T, int kStep, size_t... kLane>
TEGULA_INLINE void exchange_halves(Vec<T>& upper, Vec<T>& lower, Indices<kLane...>) {
  constexpr int kN = sizeof...(kLane);
#if defined(__clang__)
  const Vec<T> first =
      __builtin_shufflevector(upper, lower, (kLane & kStep ? kN + kLane - kStep : kLane)...);
  lower = __builtin_shufflevector(upper, lower, (kLane & kStep ? kN + kLane : kLane + kStep)...);
#else
  using Selector = Vec<Int<T>>;
  const Vec<T> first = __builtin_shuffle(
      upper, lower, Selector{static_cast<Int<T>>(kLane & kStep ? kN + kLane - kStep : kLane)...});
  lower = __builtin_shuffle(
      upper, lower, Selector{static_cast<Int<T>>(kLane & kStep ? kN + kLane : kLane + kStep)...});
#endif
  upper = first;
}

template <class T, int kStep>
TEGULA_INLINE void transpose_steps(Vec<T>* rows) {
  using Lanes = typename MakeIndices<kLanes<T>>::Type;
  if constexpr (kStep > 0) {
    TEGULA_UNROLL(16)
    for (int i = 0; i < kLanes<T>; ++i) {
      if ((i & kStep) == 0) exchange_halves<T, kStep>(rows[i], rows[i + kStep], Lanes{});
    }
    transpose_steps<T, kStep / 2>(rows);
  }
}

template <class T>
TEGULA_INLINE void transpose(Vec<T>* rows) {
  transpose_steps<T, kLanes<T> / 2>(rows);
}

// The same, read from memory: kLanes numbers from row_at(i) on for each i.
template <class T, class Row>
TEGULA_INLINE void load_transposed(Row&& row_at, Vec<T>* columns) {
#if defined(TEGULA_ISA_AVX512)
  if constexpr (sizeof(T) == 4) {
    // Rows r, r + 4, r + 8, r + 12 share a vector, a quarter each, straight from the loads;
    // then 4 x 4 blocks turn within the quarters.
    const auto quarter = [&](int row, int first) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row_at(row) + first));
    };
    TEGULA_UNROLL(4)
    for (int first = 0; first < 16; first += 4) {
      __m512i row[4];
      TEGULA_UNROLL(4)
      for (int r = 0; r < 4; ++r) {
        row[r] = _mm512_zextsi128_si512(quarter(r, first));
        row[r] = _mm512_mask_broadcast_i32x4(row[r], 0x00F0, quarter(r + 4, first));
        row[r] = _mm512_mask_broadcast_i32x4(row[r], 0x0F00, quarter(r + 8, first));
        row[r] = _mm512_mask_broadcast_i32x4(row[r], 0xF000, quarter(r + 12, first));
      }
      const __m512i low01 = _mm512_unpacklo_epi32(row[0], row[1]);
      const __m512i high01 = _mm512_unpackhi_epi32(row[0], row[1]);
      const __m512i low23 = _mm512_unpacklo_epi32(row[2], row[3]);
      const __m512i high23 = _mm512_unpackhi_epi32(row[2], row[3]);
      // Lane 4 q + r of column c comes from row r of quarter q, which is row r + 4 q.
      columns[first + 0] = reinterpret_cast<Vec<T>>(_mm512_unpacklo_epi64(low01, low23));
      columns[first + 1] = reinterpret_cast<Vec<T>>(_mm512_unpackhi_epi64(low01, low23));
      columns[first + 2] = reinterpret_cast<Vec<T>>(_mm512_unpacklo_epi64(high01, high23));
      columns[first + 3] = reinterpret_cast<Vec<T>>(_mm512_unpackhi_epi64(high01, high23));
    }
    return;
  }
#endif
  TEGULA_UNROLL(16)
  for (int i = 0; i < kLanes<T>; ++i) columns[i] = load_unaligned(row_at(i));
  transpose<T>(columns);
}

// ---- 16-bit floats ----

// A vector's worth of 16-bit numbers that widen to kLanes<float> floats.
typedef uint16_t Bits16 __attribute__((vector_size(kVectorBytes / 2), may_alias));
typedef uint16_t UnalignedBits16
    __attribute__((vector_size(kVectorBytes / 2), aligned(1), may_alias));

TEGULA_INLINE Vec<float> widen(const BFloat16*, Bits16 bits) {
#if defined(TEGULA_ISA_AVX512)
  const Vec<uint32_t> wide =
      reinterpret_cast<Vec<uint32_t>>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(bits)));
#elif defined(TEGULA_ISA_AVX2)
  const Vec<uint32_t> wide =
      reinterpret_cast<Vec<uint32_t>>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(bits)));
#else
  const Vec<uint32_t> wide = __builtin_convertvector(bits, Vec<uint32_t>);
#endif
  return bits_as<float>(wide << 16);
}

TEGULA_INLINE Vec<float> widen(const Half*, Bits16 bits) {
#if defined(TEGULA_ISA_AVX512)
  return reinterpret_cast<Vec<float>>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(bits)));
#elif defined(TEGULA_ISA_AVX2)
  return reinterpret_cast<Vec<float>>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(bits)));
#else
  // Exponent and fraction move to their float places; the product with 2^112 mends
  // the bias and normalises subnormals. Exponent 31 stays Inf or NaN.
  const Vec<uint32_t> wide = __builtin_convertvector(bits, Vec<uint32_t>);
  const Vec<uint32_t> magnitude = (wide & 0x7FFFu) << 13;
  const Vec<float> scaled = bits_as<float>(magnitude) * 0x1p112f;
  const Vec<uint32_t> special = bits_as<uint32_t>((wide & 0x7C00u) == 0x7C00u);
  const Vec<uint32_t> finite_bits = bits_as<uint32_t>(scaled) & ~special;
  const Vec<uint32_t> special_bits = (magnitude | 0x7F800000u) & special;
  return bits_as<float>(finite_bits | special_bits | ((wide & 0x8000u) << 16));
#endif
}

// Rounds to nearest even; NaN stays NaN.
TEGULA_INLINE Bits16 narrow(const BFloat16*, Vec<float> v) {
  const Vec<uint32_t> bits = bits_as<uint32_t>(v);
  const Vec<uint32_t> rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Vec<uint32_t> words = v != v ? (bits >> 16) | 0x40u : rounded;
#if defined(TEGULA_ISA_AVX512)
  return reinterpret_cast<Bits16>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words)));
#else
  return __builtin_convertvector(words, Bits16);
#endif
}

TEGULA_INLINE Bits16 narrow(const Half*, Vec<float> v) {
#if defined(TEGULA_ISA_AVX512)
  return reinterpret_cast<Bits16>(
      _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(TEGULA_ISA_AVX2)
  return reinterpret_cast<Bits16>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
  const Vec<uint32_t> bits = bits_as<uint32_t>(v);
  const Vec<uint32_t> sign = (bits >> 16) & 0x8000u;
  const Vec<uint32_t> magnitude = bits & 0x7FFFFFFFu;
  // Normal results: rebias and round the 13 bits that fall off.
  const Vec<uint32_t> normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 lets the float adder round at 2^-24.
  const Vec<uint32_t> subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3F000000u;
  const auto select = [](auto condition, Vec<uint32_t> yes, Vec<uint32_t> no) {
    const Vec<uint32_t> mask = bits_as<uint32_t>(condition);
    return (yes & mask) | (no & ~mask);
  };
  Vec<uint32_t> result = select(magnitude < 0x38800000u, subnormal, normal);
  result = select(magnitude >= 0x477FF000u, Vec<uint32_t>{} + 0x7C00u, result);
  result = select(magnitude > 0x7F800000u, Vec<uint32_t>{} + 0x7E00u, result);
  return __builtin_convertvector(result | sign, Bits16);
#endif
}

// ---- loads and stores between storage type T and compute type C ----

template <class C, class T>
TEGULA_INLINE Vec<C> load_as(const T* p) {
  if constexpr (sizeof(T) == 2) {
    static_assert(sizeof(C) == 4);
    return widen(p, *reinterpret_cast<const UnalignedBits16*>(p));
  } else {
    static_assert(sizeof(T) == sizeof(C));
    return load_unaligned(p);
  }
}

template <class C, class T>
TEGULA_INLINE void store_as(T* p, Vec<C> v) {
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<UnalignedBits16*>(p) = narrow(p, v);
  } else {
    store_unaligned(p, v);
  }
}

// Single numbers go through a vector, so that every place rounds alike.
template <class C, class T>
TEGULA_INLINE C load_one(const T* p) {
  if constexpr (sizeof(T) == 2) {
    return widen(p, Bits16{} + p->bits)[0];
  } else {
    return static_cast<C>(*p);
  }
}
template <class C, class T>
TEGULA_INLINE void store_one(T* p, C x) {
  if constexpr (sizeof(T) == 2) {
    p->bits = narrow(p, broadcast<float>(static_cast<float>(x)))[0];
  } else {
    *p = static_cast<T>(x);
  }
}

// ---- integers ----

// Full products of the lanes' low 32 bits with m. 64-bit lanes: the high word, and the
// product, whose low 32 bits are the low word. 32-bit lanes: both words.
TEGULA_INLINE void multiply_words(Vec<uint64_t> a, uint32_t m, Vec<uint64_t>& high,
                                  Vec<uint64_t>& product) {
#if defined(TEGULA_ISA_AVX512)
  product = reinterpret_cast<Vec<uint64_t>>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), _mm512_set1_epi64(m)));
#elif defined(TEGULA_ISA_AVX2)
  product = reinterpret_cast<Vec<uint64_t>>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(m)));
#else
  product = (a & 0xFFFFFFFFull) * static_cast<uint64_t>(m);
#endif
  high = product >> 32;
}
TEGULA_INLINE void multiply_words(Vec<uint32_t> a, uint32_t m, Vec<uint32_t>& high,
                                  Vec<uint32_t>& low) {
  // Even lanes and odd lanes, each as the low words of 64-bit lanes.
  const Vec<uint64_t> pairs = bits_as<uint64_t>(a);
  Vec<uint64_t> even_high, even, odd_high, odd;
  multiply_words(pairs, m, even_high, even);
  multiply_words(pairs >> 32, m, odd_high, odd);
  high = bits_as<uint32_t>(even_high | (odd & ~0xFFFFFFFFull));
  low = bits_as<uint32_t>((even & 0xFFFFFFFFull) | (odd << 32));
}

// Philox 4x32-10 in every lane (base/philox.h); U is uint32_t or uint64_t. The products
// of 64-bit lanes look at their low words only, so leftovers above are cut off once.
template <class U>
TEGULA_INLINE void philox_lanes(uint64_t seed, Vec<U> (&c)[4]) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  TEGULA_UNROLL(10)
  for (int round = 0; round < kPhiloxRounds; ++round) {
    Vec<U> high0, low0, high1, low1;
    multiply_words(c[0], kPhiloxMultiplier0, high0, low0);
    multiply_words(c[2], kPhiloxMultiplier1, high1, low1);
    c[0] = high1 ^ c[1] ^ static_cast<U>(k0);
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ static_cast<U>(k1);
    c[3] = low0;
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  if constexpr (sizeof(U) == 8) {
    for (Vec<U>& word : c) word &= 0xFFFFFFFFull;
  }
}

}  // namespace
}  // namespace tegula
