// Elements of matrix products.
#pragma once

#include "arithmetic.h"
#include "device_code.h"

namespace cusim {

inline float value_of(Element kind, uint16_t bits) {
  return kind == kBFloat16 ? bfloat_value(bits) : half_value(bits);
}
inline float tf32_value(uint32_t bits) { return as_float(bits & 0xFFFFE000u); }
inline uint16_t half_word(uint32_t word, int upper) { return uint16_t(word >> (16 * upper)); }

}  // namespace cusim
