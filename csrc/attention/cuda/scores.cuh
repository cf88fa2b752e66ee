// From products to scores: scale, softcap, alibi, bias, masks and dropout.
//
// Scores are kept in units of log 2, so that weights are powers of 2. Most calls have nothing but a
// scale and intervals; kernels without the rest (kRich = false) pay nothing for it.
#pragma once

#include <cfloat>

#include "../../base/philox.h"
#include "rich.h"
#include "rounded.cuh"
#include "rows.cuh"

namespace tegula {

inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

template <class C>
TEGULA_DEVICE C negative_infinity() {
  return -static_cast<C>(INFINITY);
}

// A finite number stays finite, as a bias of finfo.min has to; `rounded` is what became of it.
template <class C>
TEGULA_DEVICE C saturated(C rounded, bool was_infinite) {
  const C largest = sizeof(C) == 4 ? static_cast<C>(FLT_MAX) : static_cast<C>(DBL_MAX);
  return isinf(rounded) && !was_infinite ? copysign(largest, rounded) : rounded;
}
// A natural logarithm in units of log 2.
template <class C>
TEGULA_DEVICE C in_log2(C natural) {
  return saturated(rounded_product(natural, static_cast<C>(kLog2E)), isinf(natural));
}
// The other way, and a natural logarithm added.
template <class C>
TEGULA_DEVICE C in_natural(C log2, C natural) {
  const C largest = sizeof(C) == 4 ? static_cast<C>(FLT_MAX) : static_cast<C>(DBL_MAX);
  return fabs(log2) == largest ? log2 : fused(log2, static_cast<C>(kLn2), natural);
}

TEGULA_DEVICE float hyperbolic_tangent(float x) { return tanhf(x); }
TEGULA_DEVICE double hyperbolic_tangent(double x) { return tanh(x); }

// The options of one unit's calls. C: the type of scores. Rows are known by their numbers in the
// unit, or by their places, which whoever asks for many keys of a row computes once.
template <class C, bool kRich>
class Scores {
 public:
  TEGULA_DEVICE Scores(const AttentionArgs& args, const Unit& unit)
      : a_(args),
        unit_(unit),
        scale_(static_cast<C>(args.scale)),
        scale_log2_(static_cast<C>(args.scale * kLog2E)) {
    if constexpr (kRich) {
      if (a_.bias) bias_offset_ = batch_offset(a_.bias, unit.batch);
      seed_ = a_.dropout.active() ? a_.dropout.current_seed() : 0;
    }
  }

  // The score of a pair that the intervals show, in units of log 2; -inf where the dense mask or
  // the bias hides it. `product` is q k^T.
  TEGULA_DEVICE C operator()(C product, int64_t row, int key) const {
    if constexpr (!kRich) return rounded_product(product, scale_log2_);
    return (*this)(product, unit_.place(row), key);
  }
  TEGULA_DEVICE C operator()(C product, const RowPlace& row, int key) const {
    if constexpr (!kRich) return rounded_product(product, scale_log2_);
    if (a_.dense && !shown(row, key)) return negative_infinity<C>();
    C score = rounded_product(product, scale_);
    if (a_.softcap > 0.0) {
      score = rounded_product(cap(), hyperbolic_tangent(score / cap()));
    }
    if (a_.alibi != nullptr) {
      const int64_t distance = key - row.query - (a_.k_len - a_.q_len);
      const C slope = static_cast<C>(a_.alibi[row.head]);
      score = rounded_sum(score, rounded_product(slope, static_cast<C>(distance)));
    }
    if (a_.bias) {
      const C bias = bias_of(row, key);
      if (bias == negative_infinity<C>()) return bias;
      score = rounded_sum(score, bias);
    }
    return in_log2(score);
  }

  // Whether the dense mask and the bias leave a pair visible.
  TEGULA_DEVICE bool shows(int64_t row, int key) const {
    if constexpr (!kRich) return true;
    return shows(unit_.place(row), key);
  }
  TEGULA_DEVICE bool shows(const RowPlace& row, int key) const {
    if constexpr (!kRich) return true;
    if (a_.dense && !shown(row, key)) return false;
    return !a_.bias || bias_of(row, key) != negative_infinity<C>();
  }

  // The same of a pair whose score is known: a visible one may be -inf as well.
  TEGULA_DEVICE bool shows(C score, int64_t row, int key) const {
    return score != negative_infinity<C>() || shows(row, key);
  }

  // d score / d product, but for the scale: of softcap alone.
  TEGULA_DEVICE C slope(C product) const {
    if constexpr (kRich) {
      if (a_.softcap > 0.0) {
        const C share = hyperbolic_tangent(product * scale_ / cap());
        return C(1) - share * share;
      }
    }
    return C(1);
  }

  TEGULA_DEVICE bool drops() const { return kRich && a_.dropout.active(); }
  // The factor of a pair that is not dropped.
  TEGULA_DEVICE C keep_scale() const { return drops() ? static_cast<C>(a_.dropout.scale) : C(1); }

  // 0 where dropout drops the pair, 1 / (1 - p) where it keeps it; 1 without dropout.
  TEGULA_DEVICE C kept(int64_t row, int key) const {
    if constexpr (kRich) {
      if (a_.dropout.active()) {
        const PhiloxWords words = words_of(unit_.place(row), key / 4);
        return kept_by(words, key % 4);
      }
    }
    return C(1);
  }
  // The same of the keys `key`, which is even, and `key` + 1.
  TEGULA_DEVICE void kept_pair(int64_t row, int key, C (&factors)[2]) const {
    kept_run(row, key, factors);
  }
  // The same of kKeys keys from `key` on, a multiple of kKeys.
  template <int kKeys>
  TEGULA_DEVICE void kept_run(int64_t row, int key, C (&factors)[kKeys]) const {
    kept_run(kRich ? unit_.place(row) : RowPlace{}, key, factors);
  }
  template <int kKeys>
  TEGULA_DEVICE void kept_run(const RowPlace& row, int key, C (&factors)[kKeys]) const {
    static_assert(kKeys == 1 || kKeys == 2 || kKeys == 4);
#pragma unroll
    for (C& factor : factors) factor = C(1);
    if constexpr (kRich) {
      if (a_.dropout.active()) {
        const PhiloxWords words = words_of(row, key / 4);
#pragma unroll
        for (int i = 0; i < kKeys; ++i) factors[i] = kept_by(words, key % 4 + i);
      }
    }
  }

 private:
  // Beyond every score, or below, the type may have no number for it.
  TEGULA_DEVICE C cap() const {
    constexpr C kLargest = sizeof(C) == 4 ? C(1e30) : C(1e300);
    return fmin(fmax(static_cast<C>(a_.softcap), 1 / kLargest), kLargest);
  }
  TEGULA_DEVICE bool shown(const RowPlace& row, int key) const {
    const View& dense = a_.dense;
    return *dense.at<uint8_t>(unit_.batch * dense.stride[0] + row.head * dense.stride[1] +
                              row.query * dense.stride[2] + key * dense.stride[3]) != 0;
  }
  TEGULA_DEVICE C bias_of(const RowPlace& row, int key) const {
    const View& bias = a_.bias;
    const int64_t offset =
        bias_offset_ + row.head * bias.step(2) + row.query * bias.step(1) + key * bias.step(0);
    if (sizeof(C) == 4 && bias.dtype == DType::kFloat64) {
      const double term = *bias.at<double>(offset);
      return saturated(static_cast<C>(term), isinf(term));
    }
    return load_float<C>(bias, offset);
  }
  TEGULA_DEVICE PhiloxWords words_of(const RowPlace& row, int quad) const {
    const int64_t lead = unit_.batch * a_.heads + row.head;
    return philox(seed_, static_cast<uint64_t>(lead), static_cast<uint32_t>(row.query),
                  static_cast<uint32_t>(quad));
  }
  TEGULA_DEVICE C kept_by(const PhiloxWords& words, int which) const {
    const uint32_t word = which == 0   ? words.word[0]
                          : which == 1 ? words.word[1]
                          : which == 2 ? words.word[2]
                                       : words.word[3];
    return word >= a_.dropout.threshold ? static_cast<C>(a_.dropout.scale) : C(0);
  }

  const AttentionArgs& a_;
  const Unit unit_;  // a copy: registers, where a reference would keep its holder in memory
  C scale_, scale_log2_;
  int64_t bias_offset_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace tegula
