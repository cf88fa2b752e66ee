// Rows whose log-sum-exp is so large that float32 (float64) rounds away what it says.
//
// exp(score - lse) has the absolute error of lse as its relative one. Far from 0, as under a bias
// of finfo.min or with scores of 1e6, the weights of a row would not add up to 1 any more. Those
// rows look at their own keys once more and take maximum and sum apart. A row whose keys here are
// only some of those that its lse counts keeps the lse it was given: the two differ by more than
// rounding.
//
// A warp has a row, and reads each key that it sees: slow, and rare.
#pragma once

#include "fold.cuh"

namespace tegula {

// Log-sum-exps within this lose less than 2^-16 of a float32 weight.
inline constexpr double kNearLogSum = 256.0 * kLog2E;

template <class C>
TEGULA_DEVICE bool is_far(C shift) {
  return fabs(shift) > static_cast<C>(kNearLogSum) && !isinf(shift);
}

// q k^T of a row and a key.
template <class T, class C>
TEGULA_DEVICE C product_of(const AttentionArgs& a, const T* q, const Slab<const T>& keys,
                           int64_t q_step, int64_t key_head, int key) {
  const T* k = keys.row(key_head, key);
  C sum = 0;
  for (int64_t i = 0; i < a.dim; ++i)
    sum = fused(widen(q[i * q_step]), widen(k[i * keys.step]), sum);
  return sum;
}

// Splits a shift into the largest score and what the sum adds to it. Called by whole warps.
template <class T, bool kRich, class C>
TEGULA_DEVICE void split_shift(const AttentionArgs& a, const Unit& unit, int64_t row,
                               const SeenKeys& seen, C& shift, C& rest) {
  const int64_t head = unit.head(row);
  const auto queries = slab_of<const T>(a.q, unit.batch);
  const auto keys = slab_of<const T>(a.k, unit.batch);
  const T* q = queries.row(head, unit.query(row));
  const Scores<C, kRich> scores(a, unit);
  auto softmax = RowSoftmax<C>::none();
  for (int key = seen.lo + static_cast<int>(threadIdx.x % 32); key < seen.hi; key += 32) {
    if (!seen.sees(key)) continue;
    const C product = product_of<T, C>(a, q, keys, queries.step, unit.key_head, key);
    const C score = scores(product, row, key);
    if (score != negative_infinity<C>()) fold(softmax, {score, C(1)});
  }
  for (int step = 16; step > 0; step /= 2) {
    const RowSoftmax<C> other{__shfl_xor_sync(0xFFFFFFFFu, softmax.best, step),
                              __shfl_xor_sync(0xFFFFFFFFu, softmax.sum, step)};
    fold(softmax, other);
  }
  double sum = softmax.sum;
  if (a.sinks != nullptr) sum += exp2(a.sinks[head] * kLog2E - softmax.best);
  const double of_sum = log2(sum), error = shift - softmax.best - of_sum;
  constexpr double kRounding = sizeof(C) == 4 ? 0x1p-21 : 0x1p-50;
  if (!(fabs(error) <= kRounding * fabs(static_cast<double>(shift)))) return;
  shift = softmax.best, rest = static_cast<C>(of_sum);
}

}  // namespace tegula
