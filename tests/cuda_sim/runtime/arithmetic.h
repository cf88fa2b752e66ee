// What single PTX instructions compute, for kernels (C) and the runtime (C++). Registers hold bits;
// floats are cast for each operation.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

// Compiled once a file: kernels have thousands of these, and inlining them is what takes time.
#define OUT_OF_LINE static __attribute__((noinline, unused))

static inline float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline double as_double(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
static inline uint64_t double_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// --- floats; where double holds the exact result of floats as well, there is one function for both
// --

OUT_OF_LINE float flush(float x) {  // .ftz: subnormal numbers count as zero
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.f, x) : x;
}
static inline bool is_nan(double x) { return x != x; }
static inline bool is_unordered(double x, double y) { return x != x || y != y; }
static inline bool is_finite(double x) { return x - x == 0; }
static inline bool is_infinite(double x) { return !is_nan(x) && !is_finite(x); }
static inline double saturate(double x) {  // to [0, 1]; NaN becomes 0
  return x > 0 ? (x < 1 ? x : 1) : 0;
}
static inline double float_abs(double x) { return __builtin_fabs(x); }
static inline double copy_sign(double x, double sign) { return __builtin_copysign(x, sign); }
static inline float fused_f32(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double fused_f64(double x, double y, double z) { return __builtin_fma(x, y, z); }

// The number, where the other operand is NaN; +0 counts as larger than -0.
OUT_OF_LINE double float_min(double x, double y) {
  if (is_nan(x)) return y;
  if (x == y) return __builtin_signbit(x) ? x : y;
  return y < x ? y : x;
}
OUT_OF_LINE double float_max(double x, double y) {
  if (is_nan(x)) return y;
  if (x == y) return __builtin_signbit(x) ? y : x;
  return y > x ? y : x;
}
OUT_OF_LINE double float_min_or_nan(double x, double y) {
  return is_unordered(x, y) ? __builtin_nan("") : float_min(x, y);
}
OUT_OF_LINE double float_max_or_nan(double x, double y) {
  return is_unordered(x, y) ? __builtin_nan("") : float_max(x, y);
}

static inline float ex2_f32(float x) { return __builtin_exp2f(x); }
static inline double ex2_f64(double x) { return __builtin_exp2(x); }
static inline float lg2_f32(float x) { return __builtin_log2f(x); }
static inline double lg2_f64(double x) { return __builtin_log2(x); }
static inline float sin_f32(float x) { return __builtin_sinf(x); }
static inline double sin_f64(double x) { return __builtin_sin(x); }
static inline float cos_f32(float x) { return __builtin_cosf(x); }
static inline double cos_f64(double x) { return __builtin_cos(x); }
static inline float tanh_f32(float x) { return __builtin_tanhf(x); }
static inline double tanh_f64(double x) { return __builtin_tanh(x); }
static inline float sqrt_f32(float x) { return __builtin_sqrtf(x); }
static inline double sqrt_f64(double x) { return __builtin_sqrt(x); }

static inline double round_even(double x) { return __builtin_rint(x); }
static inline double truncate_float(double x) { return __builtin_trunc(x); }
static inline double round_down(double x) { return __builtin_floor(x); }
static inline double round_up(double x) { return __builtin_ceil(x); }

// --- 16-bit floats -----------------------------------------------------------------------------
static inline float bfloat_value(uint16_t x) { return as_float((uint32_t)x << 16); }
static inline float half_value(uint16_t x) {
  _Float16 value;
  memcpy(&value, &x, sizeof value);
  return (float)value;
}
OUT_OF_LINE uint16_t half_of_double(double x) {
  const _Float16 value = (_Float16)x;
  uint16_t bits;
  memcpy(&bits, &value, sizeof bits);
  return is_nan(x) ? 0x7FFF : bits;
}
OUT_OF_LINE uint16_t half_of(float x) {
  const _Float16 value = (_Float16)x;
  uint16_t bits;
  memcpy(&bits, &value, sizeof bits);
  return is_nan(x) ? 0x7FFF : bits;
}
OUT_OF_LINE uint16_t bfloat_of(float x) {
  const uint32_t word = float_bits(x);
  return is_nan(x) ? 0x7FFF : (uint16_t)((word + 0x7FFF + (word >> 16 & 1)) >> 16);
}
OUT_OF_LINE uint16_t bfloat_of_double(double x) {
  float near = (float)x;
  if (!is_nan(x) && (double)near != x && is_finite(near)) {
    // Toward zero with the lowest bit set: the second rounding sees that the first dropped bits.
    uint32_t word = float_bits(near);
    if (float_abs(near) > float_abs(x)) --word;
    near = as_float(word | 1);
  }
  return bfloat_of(near);
}
OUT_OF_LINE uint32_t add_bfloats(uint32_t x, uint32_t y) {
  const float low = bfloat_value((uint16_t)x) + bfloat_value((uint16_t)y);
  const float high = bfloat_value((uint16_t)(x >> 16)) + bfloat_value((uint16_t)(y >> 16));
  return (uint32_t)bfloat_of(high) << 16 | bfloat_of(low);
}
OUT_OF_LINE uint32_t add_halves(uint32_t x, uint32_t y) {
  const float low = half_value((uint16_t)x) + half_value((uint16_t)y);
  const float high = half_value((uint16_t)(x >> 16)) + half_value((uint16_t)(y >> 16));
  return (uint32_t)half_of(high) << 16 | half_of(low);
}
static inline uint32_t round_to_tf32(uint32_t word) {  // ties away from zero
  return (word & 0x7F800000) == 0x7F800000 ? word : (word + 0x1000) & 0xFFFFE000u;
}

// --- integers, of any width up to 64 bits ------------------------------------------------------
static inline uint64_t low_bits(uint32_t count) {
  return count >= 64 ? ~0ull : (1ull << count) - 1;
}

// Of integral values; NaN becomes 0.
OUT_OF_LINE int64_t float_to_signed(double x, uint32_t width) {
  const double limit = width == 64 ? 0x1p63 : (double)(1ull << (width - 1));
  if (is_nan(x)) return 0;
  if (x <= -limit) return -(int64_t)(low_bits(width - 1)) - 1;
  return x >= limit ? (int64_t)low_bits(width - 1) : (int64_t)x;
}
OUT_OF_LINE uint64_t float_to_unsigned(double x, uint32_t width) {
  const double limit = width == 64 ? 0x1p64 : (double)(1ull << width);
  if (!(x > 0)) return 0;
  return x >= limit ? low_bits(width) : (uint64_t)x;
}
OUT_OF_LINE int64_t clamp_signed(__int128 x, uint32_t width) {
  const __int128 most = (__int128)low_bits(width - 1);
  return (int64_t)(x > most ? most : x < -most - 1 ? -most - 1 : x);
}
OUT_OF_LINE uint64_t clamp_unsigned(__int128 x, uint32_t width) {
  const __int128 most = (__int128)low_bits(width);
  return (uint64_t)(x > most ? most : x < 0 ? 0 : x);
}

OUT_OF_LINE int64_t quotient_signed(int64_t x, int64_t y) {
  if (y == 0) return -1;
  return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
}
OUT_OF_LINE uint64_t quotient_unsigned(uint64_t x, uint64_t y) { return y == 0 ? ~0ull : x / y; }
OUT_OF_LINE int64_t remainder_signed(int64_t x, int64_t y) {
  if (y == 0) return x;
  return y == -1 ? 0 : x % y;
}
OUT_OF_LINE uint64_t remainder_unsigned(uint64_t x, uint64_t y) { return y == 0 ? x : x % y; }
static inline int32_t sign_extend_24(uint32_t x) { return (int32_t)(x << 8) >> 8; }
static inline uint32_t low_24(uint32_t x) { return x & 0xFFFFFF; }

static inline uint32_t leading_zeros(uint64_t x, uint32_t width) {
  return x == 0 ? width : (uint32_t)__builtin_clzll(x) - (64 - width);
}
static inline uint64_t magnitude_bits(int64_t x) { return (uint64_t)(x < 0 ? ~x : x); }
static inline uint32_t highest_bit(uint64_t x) {
  return x == 0 ? 0xFFFFFFFFu : 63 - (uint32_t)__builtin_clzll(x);
}
static inline uint32_t shift_to_top(uint64_t x, uint32_t width) {
  return x == 0 ? 0xFFFFFFFFu : width - 1 - highest_bit(x);
}
OUT_OF_LINE uint64_t reverse_bits(uint64_t x, uint32_t width) {
  uint64_t reversed = 0;
  for (uint32_t i = 0; i < width; ++i) reversed |= (x >> i & 1) << (width - 1 - i);
  return reversed;
}

static inline uint32_t at_most_32(uint32_t count) { return count < 32 ? count : 32; }
static inline uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t count) {
  return (uint32_t)((((uint64_t)high << 32 | low) << count) >> 32);
}
static inline uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t count) {
  return (uint32_t)(((uint64_t)high << 32 | low) >> count);
}

// Positions and counts are the low 8 bits of their registers.
OUT_OF_LINE uint64_t insert_bits(uint64_t x, uint64_t into, uint32_t position, uint32_t count,
                                 uint32_t width) {
  position &= 255;
  if (position >= width) return into;
  const uint64_t mask = low_bits(count & 255) << position;
  return (into & ~mask) | ((x << position) & mask);
}
OUT_OF_LINE uint64_t extract_unsigned(uint64_t x, uint32_t position, uint32_t count,
                                      uint32_t width) {
  position &= 255;
  return position >= width ? 0 : x >> position & low_bits(count & 255);
}
// Bits beyond the register repeat its sign.
OUT_OF_LINE int64_t extract_signed(int64_t x, uint32_t position, uint32_t count, uint32_t width) {
  position &= 255;
  count &= 255;
  if (count == 0) return 0;
  const int64_t shifted = x >> (position < width ? position : width - 1);
  return count >= 64 ? shifted : (int64_t)((uint64_t)shifted << (64 - count)) >> (64 - count);
}

OUT_OF_LINE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selectors) {
  const uint64_t bytes = (uint64_t)high << 32 | low;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> (4 * i) & 15;
    uint32_t byte = bytes >> (8 * (selector & 7)) & 255;
    if (selector & 8) byte = byte & 128 ? 255 : 0;  // its sign
    chosen |= byte << (8 * i);
  }
  return chosen;
}

OUT_OF_LINE uint32_t logic_of_three(int table, uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out = 0;
  for (int i = 0; i < 8; ++i) {
    if (table >> i & 1) out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return out;
}
