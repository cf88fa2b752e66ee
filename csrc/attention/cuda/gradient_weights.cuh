// P and dS of single pairs.
#pragma once

#include "gradient_tiles.cuh"
#include "scores.cuh"

namespace tegula {

// P of a pair, and whether it is visible; `visible` is what the intervals say. Hidden pairs weigh
// 0. `place` is that of the row among the numbers.
template <int kRows, bool kRich>
TEGULA_DEVICE bool weigh(const Scores<float, kRich>& scores, const RowNumbers<kRows>& numbers,
                         float product, int64_t row, int place, int key, bool visible,
                         float& weight) {
  weight = 0;
  if (kRich && !visible) return false;  // what scores ask is there for visible pairs only
  const float score = scores(product, row, key);
  if (kRich && !scores.shows(score, row, key)) return false;
  float exponent = score - numbers.shifts[place];
  if constexpr (kRich) exponent -= numbers.rests[place];
  const float x = exp2_fast(exponent);
  if (visible) weight = x;
  return visible;
}

// dS of a pair from the products with its key and value: the slope of its score, or (kOfProduct) of
// the score before softcap. `kept` is the factor of dropout. What is hidden has no slope, whatever
// its row and key hold.
template <bool kOfProduct, int kRows, bool kRich>
TEGULA_DEVICE float slope_of(const Scores<float, kRich>& scores, const RowNumbers<kRows>& numbers,
                             float product, float of_weight, float kept, int64_t row, int place,
                             int key, bool visible) {
  float weight;
  if (!weigh(scores, numbers, product, row, place, key, visible, weight)) return 0;
  if constexpr (kRich) of_weight = kept == 0 ? 0 : of_weight * kept;
  const float slope = weight * (of_weight - numbers.deltas[place]);
  return kOfProduct && kRich ? slope * scores.slope(product) : slope;
}

}  // namespace tegula
