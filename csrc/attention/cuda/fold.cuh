// Joining the softmax of disjoint keys. Keys fold in chunks of kKeyChunk in order, by these very
// operations, wherever the chunks were computed: in one block of threads or in many.
#pragma once

#include "rounded.cuh"
#include "scores.cuh"

namespace tegula {

// Of a row and some keys: the largest score, in units of log 2, and the sum of 2^(score - best).
template <class C>
struct RowSoftmax {
  C best, sum;

  static TEGULA_DEVICE RowSoftmax none() { return {negative_infinity<C>(), C(0)}; }
  // No key was visible. A visible NaN leaves a sum of NaN.
  TEGULA_DEVICE bool empty() const { return best == negative_infinity<C>() && sum == C(0); }
};

// What exponents are relative to: -inf would make NaN of a row that has seen nothing.
template <class C>
TEGULA_DEVICE C reference_point(C best) {
  return best == negative_infinity<C>() ? C(0) : best;
}

// By what the sums over either side's keys are multiplied.
template <class C>
struct FoldFactors {
  C total, part;

  TEGULA_DEVICE C operator()(C of_total, C of_part) const {
    return fused(of_total, total, rounded_product(of_part, part));
  }
};

// Adds a part, which is not empty, to the total.
template <class C>
TEGULA_DEVICE FoldFactors<C> fold(RowSoftmax<C>& total, const RowSoftmax<C>& part) {
  const C best = fmax(total.best, part.best), point = reference_point(best);
  const FoldFactors<C> factors{power_of_2(rounded_sum(total.best, -point)),
                               power_of_2(rounded_sum(part.best, -point))};
  total = {best, factors(total.sum, part.sum)};
  return factors;
}

// What a row's softmax comes to over all its keys and its sink, if it has one.
template <class C>
struct RowResult {
  C factor;  // of the sums over keys; 0 for a row without keys
  C lse;     // natural logarithm
};

// `sink`: in units of log 2, -inf for none.
template <class C>
TEGULA_DEVICE RowResult<C> finish_row(RowSoftmax<C> softmax, C sink) {
  const C best = fmax(softmax.best, sink), point = reference_point(best);
  const C share = power_of_2(rounded_sum(softmax.best, -point));
  const C sum = fused(softmax.sum, share, power_of_2(rounded_sum(sink, -point)));
  RowResult<C> result;
  result.factor = sum == C(0) ? C(0) : share / sum;
  result.lse = in_natural(best, static_cast<C>(log(sum)));
  return result;
}

}  // namespace tegula
