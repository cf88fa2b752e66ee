// Neighbouring elements of a row, which a thread loads and stores at once: kN of them are 16
// bytes, or kN is 1 and nothing is asked of strides and addresses.
#pragma once

#include <cstring>

#include "../../cuda/device.cuh"
#include "embedding_params.h"

namespace tegula {

// a * b + c, rounded once, whatever the compiler would make of it.
TEGULA_DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TEGULA_DEVICE double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

template <class T, int kN>
struct Elements {
  T value[kN];
};

// The next 32-bit words from `p` on, in loads as wide as can be; aligned to their size, at most 16.
template <int kWords>
TEGULA_DEVICE void load_words(const void* p, uint32_t* to) {
  if constexpr (kWords == 1) {
    to[0] = *static_cast<const uint32_t*>(p);
  } else if constexpr (kWords == 2) {
    const uint2 words = *static_cast<const uint2*>(p);
    to[0] = words.x, to[1] = words.y;
  } else {
    static_assert(kWords % 4 == 0);
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 words = static_cast<const uint4*>(p)[i / 4];
      to[i] = words.x, to[i + 1] = words.y, to[i + 2] = words.z, to[i + 3] = words.w;
    }
  }
}

template <class T, int kN>
TEGULA_DEVICE Elements<T, kN> load_elements(const T* p) {
  Elements<T, kN> elements;
  if constexpr (kN == 1) {
    elements.value[0] = *p;
  } else {
    constexpr int kWords = kN * sizeof(T) / sizeof(uint32_t);
    uint32_t words[kWords];
    load_words<kWords>(p, words);
    memcpy(&elements, words, sizeof elements);
  }
  return elements;
}

template <class T, int kN>
TEGULA_DEVICE void store_elements(T* p, const Elements<T, kN>& elements) {
  if constexpr (kN == 1) {
    *p = elements.value[0];
  } else {
    static_assert(sizeof elements == sizeof(uint4));
    uint4 words;
    memcpy(&words, &elements, sizeof words);
    *reinterpret_cast<uint4*>(p) = words;
  }
}

template <class From, class C, int kN>
TEGULA_DEVICE void load_row_as(const TableRows& table, int64_t offset, C (&to)[kN]) {
  const From* from = static_cast<const From*>(table.data) + offset;
  if (kN > 1 && table.vectors) {
    const Elements<From, kN> elements = load_elements<From, kN>(from);
#pragma unroll
    for (int i = 0; i < kN; ++i) to[i] = static_cast<C>(widen(elements.value[i]));
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) to[i] = static_cast<C>(widen(from[i * table.step]));
  }
}

// kN elements of a row from `column` on, in the type of the sums.
template <class C, int kN>
TEGULA_DEVICE void load_row(const TableRows& table, int64_t row, int64_t column, C (&to)[kN]) {
  const int64_t offset = row * table.stride + column * table.step;
  switch (table.dtype) {
    case DType::kFloat64: return load_row_as<double>(table, offset, to);
    case DType::kFloat32: return load_row_as<float>(table, offset, to);
    case DType::kFloat16: return load_row_as<Half>(table, offset, to);
    default: return load_row_as<BFloat16>(table, offset, to);
  }
}

// Which of the kN columns from `column` on dropout keeps, as bits. kN divides `column`.
template <int kN>
TEGULA_DEVICE uint32_t kept_columns(const Dropout& dropout, int64_t lead, int64_t row,
                                    int64_t column) {
  const uint64_t seed = dropout.current_seed();
  uint32_t kept = 0;
#pragma unroll
  for (int quad = 0; quad < (kN + 3) / 4; ++quad) {
    const PhiloxWords words = philox(seed, static_cast<uint64_t>(lead), static_cast<uint32_t>(row),
                                     static_cast<uint32_t>(column / 4 + quad));
#pragma unroll
    for (int i = 0; i < 4; ++i) kept |= (words.word[i] >= dropout.threshold) << (4 * quad + i);
  }
  return kN < 4 ? kept >> (column % 4) : kept;
}

}  // namespace tegula
