// Element types that cross the package's boundary.
#pragma once

#include <cstdint>

#include "macros.h"

namespace tegula {

enum class DType : int32_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
};

// 16-bit floats travel as their bits: arithmetic happens after widening.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

TEGULA_INLINE constexpr int64_t item_size(DType type) {
  switch (type) {
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUInt64: return 8;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUInt32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
    case DType::kUInt16: return 2;
    default: return 1;
  }
}

TEGULA_INLINE constexpr bool is_float(DType type) { return type <= DType::kBFloat16; }
TEGULA_INLINE constexpr bool is_integer(DType type) { return type >= DType::kInt8; }

TEGULA_INLINE constexpr const char* name_of(DType type) {
  constexpr const char* kNames[] = {"float64", "float32", "float16", "bfloat16", "bool",
                                    "int8",    "int16",   "int32",   "int64",    "uint8",
                                    "uint16",  "uint32",  "uint64"};
  return kNames[static_cast<int>(type)];
}

}  // namespace tegula
