// Elementary functions of vectors, written once on the words.
#pragma once

#include "vec.h"

namespace tegula {
namespace {

// Polynomials for 2^f on [0, 1): minimax in relative error, with p(0) = 1 exactly, so
// that 2^0 is 1 and rescaling by it changes no bit. Lowest power first.
template <class T>
struct Exp2Polynomial;
template <>
struct Exp2Polynomial<float> {  // relative error 2.0e-9
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
// For values that are rounded to bfloat16 next (2^-9): relative error 7.5e-5.
struct Exp2CoarsePolynomial {
  static constexpr float kTerms[] = {0.999925218565914263f, 0.695833540479291791f,
                                     0.226067155397090548f, 0.0780245226895319235f};
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

// 2^x for x <= 127 (1023); below the smallest normal number it is 0, NaN stays NaN.
template <class T, class Polynomial = Exp2Polynomial<T>>
TEGULA_INLINE Vec<T> exp2(Vec<T> x) {
#if defined(TEGULA_ISA_AVX512)
  // vreduce gives x - floor(x) (0 for infinities), vscalef multiplies by 2^floor(x).
  constexpr int kToFloor = 0x01;
  if constexpr (sizeof(T) == 4) {
    const Vec<T> fraction =
        reinterpret_cast<Vec<T>>(_mm512_reduce_ps(reinterpret_cast<__m512>(x), kToFloor));
    const Vec<T> power = polynomial(Polynomial::kTerms, fraction);
    return reinterpret_cast<Vec<T>>(
        _mm512_scalef_ps(reinterpret_cast<__m512>(power), reinterpret_cast<__m512>(x)));
  } else {
    const Vec<T> fraction =
        reinterpret_cast<Vec<T>>(_mm512_reduce_pd(reinterpret_cast<__m512d>(x), kToFloor));
    const Vec<T> power = polynomial(Polynomial::kTerms, fraction);
    return reinterpret_cast<Vec<T>>(
        _mm512_scalef_pd(reinterpret_cast<__m512d>(power), reinterpret_cast<__m512d>(x)));
  }
#else
  using Bits = FloatBits<T>;
  const auto vanishes = x < Bits::kSmallest;
  const Vec<T> bounded = vanishes ? broadcast(Bits::kSmallest) : x;
  const Vec<T> shifted = (bounded - T(0.5)) + Bits::kRound;
  const Vec<T> whole = shifted - Bits::kRound;
  const Vec<T> power = polynomial(Polynomial::kTerms, bounded - whole);
  // A product, not an addition to the exponent: NaN must stay NaN.
  const Vec<Int<T>> exponent = bits_as<Int<T>>(shifted) - bits_as<Int<T>>(broadcast(Bits::kRound));
  const Vec<T> scale = bits_as<T>((exponent + Bits::kBias) << Bits::kFraction);
  return vanishes ? Vec<T>{} : power * scale;
#endif
}

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// tanh(x): an odd series where 1 - e^2x would cancel, (1 - e) / (1 + e) elsewhere.
template <class T>
TEGULA_INLINE Vec<T> tanh(Vec<T> x) {
  const Vec<T> size = x < T(0) ? -x : x;
  const Vec<T> e = exp2<T>(size * T(-2.0 * kLog2E));
  const Vec<T> large = (T(1) - e) / (T(1) + e);
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
                                1.0 / 87178291200.0};
  constexpr int kTerms = sizeof(T) == 4 ? 9 : 14;
  const Vec<T> y = size * T(-2);
  Vec<T> sum = broadcast(T(kSeries[kTerms - 1]));
  TEGULA_UNROLL(16)
  for (int i = kTerms - 2; i >= 0; --i) sum = sum * y + T(kSeries[i]);
  const Vec<T> m = sum * y;
  const Vec<T> small = -m / (m + T(2));
  // The NaN of a NaN argument comes from either branch.
  const Vec<T> result = size < T(0.35) ? small : large;
  return x < T(0) ? -result : result;
}

}  // namespace
}  // namespace tegula
