// The online softmax of 16 rows of a fragment (ptx.cuh) and one tile of keys, in registers.
#pragma once

#include "../../cuda/ptx.cuh"
#include "fold.cuh"

namespace tegula {

// -inf in place of the scores of keys that rows g and g + 8 of the fragment do not see. `key`: of
// the lane's first column.
template <int kN>
TEGULA_DEVICE void hide_keys(float (&s)[kN][4], const SeenKeys& upper, const SeenKeys& lower,
                             int key) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!(i < 2 ? upper : lower).sees(key + n * 8 + i % 2)) s[n][i] = negative_infinity<float>();
    }
  }
}

// A float's neighbours are 2 away from here on.
inline constexpr float kLargePoint = 1 << 24;

// Takes the scores of rows g (half 0) and g + 8 of the fragment into their softmax, and puts
// weights in their place. `rescale` is what sums over earlier keys are to be multiplied by. The
// softmax counts scores as they come, which times `scale` are in units of log 2 (kScaled false:
// they are already), and its sum runs over the lane's own keys.
template <bool kScaled, int kN>
TEGULA_DEVICE void weigh_rows(float (&s)[kN][4], float scale, RowSoftmax<float> (&softmax)[2],
                              float (&rescale)[2]) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  if (!kScaled) scale = 1;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float best = softmax[h].best;
#pragma unroll
    for (int n = 0; n < kN; ++n) best = fmaxf(best, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    best = fmaxf(best, __shfl_xor_sync(kAll, best, 1));
    best = fmaxf(best, __shfl_xor_sync(kAll, best, 2));
    // An exponent is score * scale - point in one operation, whose error grows with the point:
    // from large scores, the best is subtracted first.
    float point = rounded_product(reference_point(best), scale);
    rescale[h] = exp2_fast(rounded_sum(rounded_product(softmax[h].best, scale), -point));
    if (kScaled && fabsf(point) > kLargePoint) {
      rescale[h] = exp2_fast(rounded_product(rounded_sum(softmax[h].best, -best), scale));
      point = 0;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        s[n][2 * h] = rounded_sum(s[n][2 * h], -best);
        s[n][2 * h + 1] = rounded_sum(s[n][2 * h + 1], -best);
      }
    }
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 2 * h; i < 2 * h + 2; ++i) {
        s[n][i] = exp2_fast(fused(s[n][i], scale, -point));
        sum = rounded_sum(sum, s[n][i]);
      }
    }
    softmax[h] = {best, fused(softmax[h].sum, rescale[h], sum)};
  }
}

// Weights rounded to 16 bits, as products take them.
template <class T, int kN>
TEGULA_DEVICE void round_weights(const float (&s)[kN][4], uint32_t (&weights)[kN][2]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    weights[n][0] = pack(s[n][0], s[n][1], T{});
    weights[n][1] = pack(s[n][2], s[n][3], T{});
  }
}

// The sum over all keys, and the best score in units of log 2: what other keys can join.
TEGULA_DEVICE RowSoftmax<float> complete(RowSoftmax<float> softmax, float scale) {
  softmax.sum = rounded_sum(softmax.sum, __shfl_xor_sync(0xFFFFFFFFu, softmax.sum, 1));
  softmax.sum = rounded_sum(softmax.sum, __shfl_xor_sync(0xFFFFFFFFu, softmax.sum, 2));
  softmax.best = rounded_product(softmax.best, scale);
  return softmax;
}

// Most tiles leave the best scores of a warp's rows as they were.
template <int kColumns>
TEGULA_DEVICE void rescale_sums(float (&sums)[kColumns][4], const float (&rescale)[2]) {
  if (!__any_sync(0xFFFFFFFFu, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = rounded_product(sums[n][i], rescale[i / 2]);
  }
}

}  // namespace tegula
