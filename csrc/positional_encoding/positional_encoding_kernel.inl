// One row of a sinusoidal table: see positional_encoding.h.
#pragma once

#include "../simd/math.inl"
#include "positional_encoding.h"

namespace tegula {
namespace {

typedef float HalfFloats __attribute__((vector_size(kVectorBytes / 2), may_alias));

// float64 to 24 bits, the last of which says whether anything was cut off ("round to
// odd"): rounding that again to 16 bits equals rounding once.
TEGULA_INLINE Vec<double> to_odd(Vec<double> v) {
  constexpr int64_t kCut = (int64_t{1} << 29) - 1;
  const Vec<int64_t> bits = bits_as<int64_t>(v);
  const Vec<int64_t> inexact = (bits & kCut) != 0;
  return bits_as<double>((bits & ~kCut) | (inexact & (kCut + 1)));
}

template <class T>
TEGULA_INLINE HalfFloats to_floats(Vec<double> v) {
  if constexpr (sizeof(T) == 2) v = to_odd(v);
  return __builtin_convertvector(v, HalfFloats);
}

// s0 c0 s1 c1 ...
template <class T, size_t... kLane>
TEGULA_INLINE void store_interleaved(T* p, Vec<double> s, Vec<double> c, Indices<kLane...>) {
  constexpr int kN = sizeof...(kLane);
  if constexpr (sizeof(T) == 8) {
    store_unaligned(p, __builtin_shufflevector(s, c, (kLane / 2 + kLane % 2 * kN)...));
    store_unaligned(p + kN,
                    __builtin_shufflevector(s, c, (kN / 2 + kLane / 2 + kLane % 2 * kN)...));
  } else {
    const HalfFloats sines = to_floats<T>(s), cosines = to_floats<T>(c);
    const HalfFloats low = __builtin_shufflevector(sines, cosines, (kLane / 2 + kLane % 2 * kN)...);
    const HalfFloats high =
        __builtin_shufflevector(sines, cosines, (kN / 2 + kLane / 2 + kLane % 2 * kN)...);
    store_as<float>(p, Vec<float>(__builtin_shufflevector(low, high, kLane..., (kN + kLane)...)));
  }
}

// s0 s1 ... c0 c1 ...
template <class T, size_t... kLane>
TEGULA_INLINE void store_split(T* p, Vec<double> s, Vec<double> c, Indices<kLane...>) {
  constexpr int kN = sizeof...(kLane);
  if constexpr (sizeof(T) == 8) {
    store_unaligned(p, s);
    store_unaligned(p + kN, c);
  } else {
    store_as<float>(p, Vec<float>(__builtin_shufflevector(to_floats<T>(s), to_floats<T>(c),
                                                          kLane..., (kN + kLane)...)));
  }
}

template <class T>
TEGULA_INLINE void copy_elements(T* to, const T* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

template <class T, bool kLibrary>
TEGULA_INLINE void make_sinusoid_row(const Sinusoid& sinusoid, double position, T* out) {
  constexpr int kN = kLanes<double>;
  using Lanes = typename MakeIndices<kN>::Type;
  const int64_t half = sinusoid.half(), dim = sinusoid.dim;
  T block[2 * kN];
  for (int64_t i = 0; i < half; i += kN) {
    // frequency -> phase, rounded -> sine and cosine -> T
    const Vec<double> phase = opaque(load_unaligned(sinusoid.frequencies + i) * position);
    Vec<double> s, c;
    kLibrary ? sincos_library(phase, s, c) : sincos(phase, s, c);
    if (sinusoid.layout == PositionLayout::kInterleaved) {
      if (2 * i + 2 * kN <= dim) {
        store_interleaved(out + 2 * i, s, c, Lanes{});
      } else {
        store_interleaved(block, s, c, Lanes{});
        copy_elements(out + 2 * i, block, dim - 2 * i);
      }
    } else {
      store_split(block, s, c, Lanes{});
      const int64_t cosines = dim / 2 - i;
      if (cosines >= kN) {
        __builtin_memcpy(out + i, block, kN * sizeof(T));
        __builtin_memcpy(out + half + i, block + kN, kN * sizeof(T));
      } else {
        copy_elements(out + i, block, half - i < kN ? half - i : kN);
        copy_elements(out + half + i, block + kN, cosines);
      }
    }
  }
}

template <class T>
TEGULA_NOINLINE void sinusoid_row(const Sinusoid& sinusoid, double position, T* out) {
  if constexpr (kHasFma) {
    // The largest phase decides for the whole row; NaN is not below the limit.
    if (__builtin_fabs(position) * sinusoid.largest <= kLargestPhase) {
      return make_sinusoid_row<T, false>(sinusoid, position, out);
    }
  }
  make_sinusoid_row<T, true>(sinusoid, position, out);
}

template <class T>
constexpr PositionalEncodingKernels positional_encoding_kernels() {
  return {[](const Sinusoid& sinusoid, double position, void* out) {
    sinusoid_row(sinusoid, position, static_cast<T*>(out));
  }};
}

}  // namespace
}  // namespace tegula
