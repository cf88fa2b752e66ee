// Elementary functions of vectors, written once on the words.
#pragma once

#include "vec.h"

namespace tegula {
namespace {

// Polynomials for 2^f on [0, 1): minimax in relative error, with p(0) = 1 exactly, so
// that 2^0 is 1 and rescaling by it changes no bit. Lowest power first.
// kFlush: results below the smallest normal number become 0.
template <class T>
struct Exp2Polynomial;
template <>
struct Exp2Polynomial<float> {  // relative error 2.0e-9
  static constexpr bool kFlush = true;
  static constexpr float kTerms[] = {1.0f,
                                     0.693147044443366555f,
                                     0.240229305551738541f,
                                     0.0554852806201827848f,
                                     0.00967545156521704052f,
                                     0.00124678464507734926f,
                                     0.000216129149695573438f};
};
template <>
struct Exp2Polynomial<double> {  // relative error 3.2e-18
  static constexpr bool kFlush = true;
  static constexpr double kTerms[] = {1.0,
                                      0.693147180559945928,
                                      0.240226506959063303,
                                      0.0555041086656022387,
                                      0.00961812909955089561,
                                      0.00133335586295626759,
                                      0.000154035123097339487,
                                      0.0000152531750537952462,
                                      1.32083673082200493e-6,
                                      1.025321230405209e-7,
                                      6.55952983551727122e-9,
                                      6.26346527342259027e-10};
};
// One term less where weights are rounded to bfloat16 next: only their float32 sum, the
// log-sum-exp, shows more than that. Relative error 8.2e-8. That rounding flushes, too.
struct Exp2ShortPolynomial {
  static constexpr bool kFlush = false;
  static constexpr float kTerms[] = {1.0f,
                                     0.693151311807522955f,
                                     0.240164450136067553f,
                                     0.055799913145968067f,
                                     0.00901703028443674904f,
                                     0.00186713008190700818f};
};

template <class T, int kCount>
TEGULA_INLINE Vec<T> polynomial(const T (&terms)[kCount], Vec<T> x) {
  Vec<T> sum = broadcast(terms[kCount - 1]);
  TEGULA_UNROLL(16)
  for (int i = kCount - 2; i >= 0; --i) sum = sum * x + terms[i];
  return sum;
}

template <class T>
struct FloatBits;
template <>
struct FloatBits<float> {
  static constexpr int kFraction = 23;
  static constexpr int32_t kBias = 127;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float kSmallest = -126.0f;   // 2^x is normal from here on
};
template <>
struct FloatBits<double> {
  static constexpr int kFraction = 52;
  static constexpr int64_t kBias = 1023;
  static constexpr double kRound = 6755399441055744.0;
  static constexpr double kSmallest = -1022.0;
};

// 2^(x + tail) for x <= 127 (1023) and a tail far below 1, if there is one; below the
// smallest normal number it is 0, NaN stays NaN.
template <class T, class Polynomial = Exp2Polynomial<T>, class... Tail>
TEGULA_INLINE Vec<T> exp2(Vec<T> x, Tail... tail) {
#if defined(TEGULA_ISA_AVX512)
  // vreduce gives x - floor(x) (0 for infinities), vscalef multiplies by 2^floor(x). Numbers
  // below normal would slow down whatever multiplies them.
  constexpr int kToFloor = 0x01;
  if constexpr (sizeof(T) == 4) {
    const Vec<T> fraction =
        reinterpret_cast<Vec<T>>(_mm512_reduce_ps(reinterpret_cast<__m512>(x), kToFloor));
    const Vec<T> power = polynomial(Polynomial::kTerms, (fraction + ... + tail));
    if constexpr (!Polynomial::kFlush) {
      return reinterpret_cast<Vec<T>>(
          _mm512_scalef_ps(reinterpret_cast<__m512>(power), reinterpret_cast<__m512>(x)));
    }
    const __mmask16 normal =
        _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return reinterpret_cast<Vec<T>>(_mm512_maskz_scalef_ps(normal, reinterpret_cast<__m512>(power),
                                                           reinterpret_cast<__m512>(x)));
  } else {
    const Vec<T> fraction =
        reinterpret_cast<Vec<T>>(_mm512_reduce_pd(reinterpret_cast<__m512d>(x), kToFloor));
    const Vec<T> power = polynomial(Polynomial::kTerms, (fraction + ... + tail));
    const __mmask8 normal =
        _mm512_cmp_pd_mask(reinterpret_cast<__m512d>(x), _mm512_set1_pd(-1022.0), _CMP_NLT_UQ);
    return reinterpret_cast<Vec<T>>(_mm512_maskz_scalef_pd(normal, reinterpret_cast<__m512d>(power),
                                                           reinterpret_cast<__m512d>(x)));
  }
#else
  using Bits = FloatBits<T>;
  const auto vanishes = x < Bits::kSmallest;
  const Vec<T> bounded = vanishes ? broadcast(Bits::kSmallest) : x;
  const Vec<T> shifted = (bounded - T(0.5)) + Bits::kRound;
  const Vec<T> whole = shifted - Bits::kRound;
  const Vec<T> power = polynomial(Polynomial::kTerms, ((bounded - whole) + ... + tail));
  // A product, not an addition to the exponent: NaN must stay NaN.
  const Vec<Int<T>> exponent = bits_as<Int<T>>(shifted) - bits_as<Int<T>>(broadcast(Bits::kRound));
  const Vec<T> scale = bits_as<T>((exponent + Bits::kBias) << Bits::kFraction);
  return vanishes ? Vec<T>{} : power * scale;
#endif
}

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// e^x, where rounding x log2(e) would show: its error is carried along.
template <class T>
TEGULA_INLINE Vec<T> exp(Vec<T> x) {
  constexpr T kHigh = static_cast<T>(kLog2E);
  constexpr T kLow = sizeof(T) == 4 ? static_cast<T>(kLog2E - kHigh) : T(2.0355273740931033e-17);
  const Vec<T> exponent = opaque(x * kHigh);
  // An infinite x has no error, but inf - inf would be one.
  const Vec<T> error = kHasFma ? (x * kHigh - exponent) + x * kLow : x * kLow;
  return exp2<T>(exponent, error);
}

// tanh(x): 1 - 2e / (1 + e) with e = exp(-2|x|), a series where that would cancel.
template <class T>
TEGULA_INLINE Vec<T> tanh(Vec<T> x) {
  const Vec<T> size = x < T(0) ? -x : x;
  const Vec<T> e = exp2<T>(size * T(-2.0 * kLog2E));
  const Vec<T> large = T(1) - (e + e) / (T(1) + e);
  // expm1(-2a) = -2a (1 - a (1 - ...)) by its series: tanh a = -m / (m + 2).
  constexpr double kSeries[] = {1.0 / 1,
                                1.0 / 2,
                                1.0 / 6,
                                1.0 / 24,
                                1.0 / 120,
                                1.0 / 720,
                                1.0 / 5040,
                                1.0 / 40320,
                                1.0 / 362880,
                                1.0 / 3628800,
                                1.0 / 39916800,
                                1.0 / 479001600,
                                1.0 / 6227020800.0,
                                1.0 / 87178291200.0,
                                1.0 / 1307674368000.0,
                                1.0 / 20922789888000.0,
                                1.0 / 355687428096000.0};
  constexpr int kTerms = sizeof(T) == 4 ? 9 : 17;
  const Vec<T> y = size * T(-2);
  Vec<T> sum = broadcast(T(kSeries[kTerms - 1]));
  TEGULA_UNROLL(20)
  for (int i = kTerms - 2; i >= 0; --i) sum = sum * y + T(kSeries[i]);
  const Vec<T> m = sum * y;
  const Vec<T> small = -m / (m + T(2));
  // The NaN of a NaN argument comes from either branch.
  const Vec<T> result = size < T(0.35) ? small : large;
  return x < T(0) ? -result : result;
}

// a * b + c, rounded once: for where the result depends on it.
TEGULA_INLINE Vec<double> fused(Vec<double> a, Vec<double> b, Vec<double> c) {
#if defined(TEGULA_ISA_AVX512)
  return reinterpret_cast<Vec<double>>(_mm512_fmadd_pd(
      reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#elif defined(TEGULA_ISA_AVX2)
  return reinterpret_cast<Vec<double>>(_mm256_fmadd_pd(
      reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
#else
  for (int i = 0; i < kLanes<double>; ++i) c[i] = __builtin_fma(a[i], b[i], c[i]);
  return c;
#endif
}

// sincos below is right up to here.
inline constexpr double kLargestPhase = 0x1p40;

// For all other arguments: lane by lane, by the C library. NaN for NaN and infinities.
TEGULA_NOINLINE void sincos_library(Vec<double> x, Vec<double>& sine, Vec<double>& cosine) {
  for (int i = 0; i < kLanes<double>; ++i) {
    sine[i] = __builtin_sin(x[i]);
    cosine[i] = __builtin_cos(x[i]);
  }
}

// sin(x) and cos(x) in float64, each within 1 ulp, for |x| <= kLargestPhase, on sets that
// have FMA.
//
// x = n pi/2 + r (Cody and Waite), |r| <= pi/4, with pi/2 as a sum of three float64
// numbers. x - n * kHalfPi[0] is exact under FMA: both are multiples of 2^-53, and the
// difference is below 1. Then the minimax polynomials of fdlibm's __kernel_sin and
// __kernel_cos (error 2^-58).
TEGULA_INLINE void sincos(Vec<double> x, Vec<double>& sine, Vec<double>& cosine) {
  constexpr double kTwoOverPi = 0.6366197723675814;
  constexpr double kHalfPi[] = {1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33};
  constexpr double kSine[] = {-1.66666666666666324348e-01, 8.33333333332248946124e-03,
                              -1.98412698298579493134e-04, 2.75573137070700676789e-06,
                              -2.50507602534068634195e-08, 1.58969099521155010221e-10};
  constexpr double kCosine[] = {4.16666666666666019037e-02, -1.38888888888741095749e-03,
                                2.48015872894767294178e-05, -2.75573143513906633035e-07,
                                2.08757232129817482790e-09, -1.13596475577881948265e-11};
  constexpr double kRound = FloatBits<double>::kRound;

  const Vec<double> shifted = x * kTwoOverPi + kRound;
  const Vec<int64_t> quadrant = bits_as<int64_t>(shifted);
  const Vec<double> minus_n = kRound - shifted;
  const Vec<double> first = fused(minus_n, broadcast(kHalfPi[0]), x);
  // Near a multiple of pi/2 the second part cancels the first, so the errors of its
  // product and of the sum are kept: x - n pi/2 = r + low.
  const Vec<double> second = opaque(minus_n * kHalfPi[1]);
  const Vec<double> second_low = fused(minus_n, broadcast(kHalfPi[1]), -second);
  const Vec<double> r = first + second;
  const Vec<double> back = r - first;
  const Vec<double> sum_low = (first - (r - back)) + (second - back);
  const Vec<double> low = fused(minus_n, broadcast(kHalfPi[2]), sum_low + second_low);

  const Vec<double> z = r * r;
  const Vec<double> small_sine = r + (z * r * polynomial(kSine, z) + low);
  // 1 - z/2 with the bits that its rounding loses, then the rest of the series.
  const Vec<double> half = opaque(z * 0.5);
  const Vec<double> head = 1.0 - half;
  const Vec<double> small_cosine =
      head + (((1.0 - head) - half) + (z * z * polynomial(kCosine, z) - r * low));

  const auto odd = (quadrant & 1) != 0;
  const Vec<double> s = odd ? small_cosine : small_sine;
  const Vec<double> c = odd ? small_sine : small_cosine;
  // The sign bit: quadrants 2 and 3 for the sine, 1 and 2 for the cosine.
  sine = bits_as<double>(bits_as<int64_t>(s) ^ ((quadrant & 2) << 62));
  cosine = bits_as<double>(bits_as<int64_t>(c) ^ (((quadrant + 1) & 2) << 62));
}

}  // namespace
}  // namespace tegula
