// What single PTX instructions compute. Registers hold bits; floats are cast for each operation.
#pragma once

#include <stdint.h>

inline float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline double as_double(uint64_t bits) { return __builtin_bit_cast(double, bits); }
inline uint32_t bits(float value) { return __builtin_bit_cast(uint32_t, value); }
inline uint64_t bits(double value) { return __builtin_bit_cast(uint64_t, value); }

// --- floats
// ---------------------------------------------------------------------------------------
inline float flush(float x) {  // .ftz: subnormal numbers count as zero
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.f, x) : x;
}
template <class T>
inline bool is_nan(T x) {
  return x != x;
}
template <class T>
inline bool is_unordered(T x, T y) {
  return is_nan(x) || is_nan(y);
}
template <class T>
inline bool is_finite(T x) {
  return x - x == 0;
}
template <class T>
inline bool is_infinite(T x) {
  return !is_nan(x) && !is_finite(x);
}
template <class T>
inline T saturate(T x) {  // to [0, 1]; NaN becomes 0
  return x > 0 ? (x < 1 ? x : T(1)) : T(0);
}

inline float float_abs(float x) { return __builtin_fabsf(x); }
inline double float_abs(double x) { return __builtin_fabs(x); }
inline float copy_sign(float x, float sign) { return __builtin_copysignf(x, sign); }
inline double copy_sign(double x, double sign) { return __builtin_copysign(x, sign); }
inline float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fused(double x, double y, double z) { return __builtin_fma(x, y, z); }

// The number, where the other operand is NaN; +0 counts as larger than -0.
template <class T>
inline T float_min(T x, T y) {
  if (is_nan(x)) return y;
  if (x == y) return __builtin_signbit(x) ? x : y;
  return y < x ? y : x;
}
template <class T>
inline T float_max(T x, T y) {
  if (is_nan(x)) return y;
  if (x == y) return __builtin_signbit(x) ? y : x;
  return y > x ? y : x;
}
template <class T>
inline T float_min_or_nan(T x, T y) {
  return is_unordered(x, y) ? T(__builtin_nanf("")) : float_min(x, y);
}
template <class T>
inline T float_max_or_nan(T x, T y) {
  return is_unordered(x, y) ? T(__builtin_nanf("")) : float_max(x, y);
}

inline float exp2_of(float x) { return __builtin_exp2f(x); }
inline double exp2_of(double x) { return __builtin_exp2(x); }
inline float log2_of(float x) { return __builtin_log2f(x); }
inline double log2_of(double x) { return __builtin_log2(x); }
inline float sin_of(float x) { return __builtin_sinf(x); }
inline double sin_of(double x) { return __builtin_sin(x); }
inline float cos_of(float x) { return __builtin_cosf(x); }
inline double cos_of(double x) { return __builtin_cos(x); }
inline float tanh_of(float x) { return __builtin_tanhf(x); }
inline double tanh_of(double x) { return __builtin_tanh(x); }
inline float sqrt_of(float x) { return __builtin_sqrtf(x); }
inline double sqrt_of(double x) { return __builtin_sqrt(x); }

inline float round_even(float x) { return __builtin_rintf(x); }
inline double round_even(double x) { return __builtin_rint(x); }
inline float truncate(float x) { return __builtin_truncf(x); }
inline double truncate(double x) { return __builtin_trunc(x); }
inline float round_down(float x) { return __builtin_floorf(x); }
inline double round_down(double x) { return __builtin_floor(x); }
inline float round_up(float x) { return __builtin_ceilf(x); }
inline double round_up(double x) { return __builtin_ceil(x); }

// Operations in a rounding other than to nearest.
namespace rounded {
enum Mode { rz, rm, rp };
template <class T>
T add(Mode mode, T x, T y);
template <class T>
T sub(Mode mode, T x, T y);
template <class T>
T mul(Mode mode, T x, T y);
template <class T>
T div(Mode mode, T x, T y);
template <class T>
T sqrt(Mode mode, T x);
template <class T>
T fma(Mode mode, T x, T y, T z);
template <class T>
T convert(Mode mode, double x);
template <class T>
T convert(Mode mode, int64_t x);
template <class T>
T convert(Mode mode, uint64_t x);
template <class T, class V>
inline T convert(Mode mode, V x) {
  return convert<T>(mode, int64_t(x));
}
}  // namespace rounded

// --- 16-bit floats
// --------------------------------------------------------------------------------
inline float bfloat_value(uint16_t x) { return as_float(uint32_t(x) << 16); }
inline float half_value(uint16_t x) { return float(__builtin_bit_cast(_Float16, x)); }
inline uint16_t half_of(float x) {
  return is_nan(x) ? 0x7FFF : __builtin_bit_cast(uint16_t, _Float16(x));
}
inline uint16_t half_of(double x) {
  return is_nan(x) ? 0x7FFF : __builtin_bit_cast(uint16_t, _Float16(x));
}
inline uint16_t bfloat_of(float x) {
  const uint32_t word = bits(x);
  return is_nan(x) ? 0x7FFF : uint16_t((word + 0x7FFF + (word >> 16 & 1)) >> 16);
}
inline uint16_t bfloat_of(double x) {
  float near = float(x);
  if (!is_nan(x) && double(near) != x && is_finite(near)) {
    // Toward zero with the lowest bit set: the second rounding sees that the first dropped bits.
    uint32_t word = bits(near);
    if (float_abs(double(near)) > float_abs(x)) --word;
    near = as_float(word | 1);
  }
  return bfloat_of(near);
}
template <class T>
inline T add_bfloats(T x, T y) {
  T sum = 0;
  for (unsigned shift = 0; shift < 8 * sizeof(T); shift += 16) {
    const float part = bfloat_value(uint16_t(x >> shift)) + bfloat_value(uint16_t(y >> shift));
    sum |= T(T(bfloat_of(part)) << shift);
  }
  return sum;
}
template <class T>
inline T add_halves(T x, T y) {
  T sum = 0;
  for (unsigned shift = 0; shift < 8 * sizeof(T); shift += 16) {
    const float part = half_value(uint16_t(x >> shift)) + half_value(uint16_t(y >> shift));
    sum |= T(T(half_of(part)) << shift);
  }
  return sum;
}
inline uint32_t round_to_tf32(uint32_t word) {  // ties away from zero
  return (word & 0x7F800000) == 0x7F800000 ? word : (word + 0x1000) & 0xFFFFE000u;
}

// --- integers
// -------------------------------------------------------------------------------------
template <class T>
constexpr T least_of = T(-1) < T(0) ? T(T(1) << (8 * sizeof(T) - 1)) : T(0);
template <class T>
constexpr T greatest_of = T(~least_of<T>);

template <class T, class V>
inline T float_to_int(V x) {  // of an integral value; NaN becomes 0
  if (is_nan(x)) return 0;
  if (x <= V(least_of<T>)) return least_of<T>;
  return x >= V(greatest_of<T>) ? greatest_of<T> : T(x);
}
template <class T, class V>
inline T int_to_int(V x) {
  const __int128 wide = x;
  return wide < least_of<T> ? least_of<T> : wide > greatest_of<T> ? greatest_of<T> : T(x);
}
inline int32_t clamp_to_int(int64_t x) { return int_to_int<int32_t>(x); }
template <class T>
inline T quotient(T x, T y) {
  if (y == 0) return T(-1);
  return T(-1) < T(0) && y == T(-1) ? T(0 - uint64_t(x)) : T(x / y);
}
template <class T>
inline T remainder(T x, T y) {
  if (y == 0) return x;
  return T(-1) < T(0) && y == T(-1) ? T(0) : T(x % y);
}
inline int32_t sign_extend_24(uint32_t x) { return int32_t(x << 8) >> 8; }
inline uint32_t low_24(uint32_t x) { return x & 0xFFFFFF; }

template <class T>
inline uint32_t count_ones(T x) {
  return __builtin_popcountll(x);
}
template <class T>
inline uint32_t leading_zeros(T x) {
  return x == 0 ? 8 * sizeof(T) : __builtin_clzll(x) - (64 - 8 * sizeof(T));
}
template <class T>
inline uint32_t highest_bit(T x) {
  const uint64_t magnitude = uint64_t(x < 0 ? ~x : x);
  return magnitude == 0 ? 0xFFFFFFFFu : 63 - __builtin_clzll(magnitude);
}
template <class T>
inline uint32_t shift_to_top(T x) {
  const uint32_t bit = highest_bit(x);
  return bit == 0xFFFFFFFFu ? bit : 8 * sizeof(T) - 1 - bit;
}
template <class T>
inline T reverse_bits(T x) {
  T reversed = 0;
  for (unsigned i = 0; i < 8 * sizeof(T); ++i) reversed |= T(x >> i & 1) << (8 * sizeof(T) - 1 - i);
  return reversed;
}

inline uint32_t at_most_32(uint32_t count) { return count < 32 ? count : 32; }
inline uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t count) {
  return uint32_t((uint64_t(high) << 32 | low) << count >> 32);
}
inline uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t count) {
  return uint32_t((uint64_t(high) << 32 | low) >> count);
}

// Positions and counts are the low 8 bits of their registers.
template <class T>
inline T insert_bits(T x, T into, uint32_t position, uint32_t count) {
  constexpr uint32_t kWidth = 8 * sizeof(T);
  position &= 255;
  count &= 255;
  if (position >= kWidth) return into;
  const T mask = (count >= kWidth ? T(~T(0)) : T((T(1) << count) - 1)) << position;
  return (into & ~mask) | ((x << position) & mask);
}
template <class T>
inline T extract_bits(T x, uint32_t position, uint32_t count) {
  constexpr uint32_t kWidth = 8 * sizeof(T);
  position &= 255;
  count &= 255;
  const bool negative =
      T(-1) < T(0) && count != 0 &&
      (uint64_t(x) >> (position + count - 1 < kWidth ? position + count - 1 : kWidth - 1) & 1);
  T field = 0;
  for (uint32_t i = 0; i < kWidth; ++i) {
    const bool inside = i < count && position + i < kWidth;
    const bool bit = inside ? uint64_t(x) >> (position + i) & 1 : negative;
    field |= T(uint64_t(bit) << i);
  }
  return field;
}

inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selectors) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> (4 * i) & 15;
    uint32_t byte = bytes >> (8 * (selector & 7)) & 255;
    if (selector & 8) byte = byte & 128 ? 255 : 0;  // its sign
    chosen |= byte << (8 * i);
  }
  return chosen;
}

template <int kTable>
inline uint32_t logic_of_three(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out = 0;
  for (int i = 0; i < 8; ++i)
    if (kTable >> i & 1) out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return out;
}
