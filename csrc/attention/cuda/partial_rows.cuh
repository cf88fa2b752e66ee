// Results of rows for some of their keys, in global memory, and what becomes of a row in the end.
#pragma once

#include "../../cuda/ptx.cuh"
#include "fold.cuh"
#include "forward_params.h"

namespace tegula {

TEGULA_DEVICE RowSoftmax<float> load_softmax(const AttentionForwardParams& p, int64_t place) {
  const float2 pair = reinterpret_cast<const float2*>(p.softmaxes)[place];
  return {pair.x, pair.y};
}
TEGULA_DEVICE void store_softmax(const AttentionForwardParams& p, int64_t place,
                                 const RowSoftmax<float>& softmax) {
  reinterpret_cast<float2*>(p.softmaxes)[place] = make_float2(softmax.best, softmax.sum);
}

// How a row's sums over a later part of its keys join those over the earlier ones: the only place
// that decides it, so that it makes no difference who folds. A side without keys has sums of zero,
// and leaves the other's as they are: -0 is what changes nothing.
TEGULA_DEVICE FoldFactors<float> fold_rows(RowSoftmax<float>& total,
                                           const RowSoftmax<float>& part) {
  if (part.empty()) return {1.0f, -0.0f};
  if (total.empty()) {
    total = part;
    return {-0.0f, 1.0f};
  }
  return fold(total, part);
}

// The place of a row's chunk, where chunks are items.
TEGULA_DEVICE int64_t place_of_chunk(const AttentionForwardParams& p, const Unit& unit, int64_t row,
                                     int64_t chunk) {
  const int64_t index = unit.batch * p.a.key_heads + unit.key_head;
  return (index * unit.rows + row) * p.chunks + chunk;
}

// The lane's columns of a row's sums, in a fragment and in memory at `place`.
TEGULA_DEVICE float2* columns_at(const AttentionForwardParams& p, int64_t place) {
  return reinterpret_cast<float2*>(p.sums + place * p.width) + opaque(threadIdx.x) % 4;
}

// Half `half` of a fragment's rows joins what is stored of the keys before.
template <int kColumns>
TEGULA_DEVICE void join_row(const AttentionForwardParams& p, int64_t place, int half,
                            float (&sums)[kColumns][4], RowSoftmax<float>& softmax) {
  RowSoftmax<float> total = load_softmax(p, place);
  const FoldFactors<float> fold = fold_rows(total, softmax);
  softmax = total;
  const float2* const stored = columns_at(p, place);
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    if (n * 8 >= p.width) continue;
    const float2 pair = stored[n * 4];
    sums[n][2 * half] = fold(pair.x, sums[n][2 * half]);
    sums[n][2 * half + 1] = fold(pair.y, sums[n][2 * half + 1]);
  }
}

template <int kColumns>
TEGULA_DEVICE void store_row(const AttentionForwardParams& p, int64_t place, int half,
                             const float (&sums)[kColumns][4], const RowSoftmax<float>& softmax) {
  if (opaque(threadIdx.x) % 4 == 0) store_softmax(p, place, softmax);
  float2* const stored = columns_at(p, place);
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    if (n * 8 >= p.width) continue;
    stored[n * 4] = make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
  }
}

// What the row's sums are multiplied by, and its lse. Without a sink: null.
TEGULA_DEVICE RowResult<float> result_of_row(const AttentionArgs& a, const double* sink_of_row,
                                             const RowSoftmax<float>& softmax) {
  const float sink = sink_of_row == nullptr ? negative_infinity<float>()
                                            : in_log2(static_cast<float>(*sink_of_row));
  RowResult<float> result = finish_row(softmax, sink);
  if (a.dropout.active()) {
    result.factor = rounded_product(result.factor, static_cast<float>(a.dropout.scale));
  }
  return result;
}

// Where everything is dropped, values do not matter, whatever they are.
TEGULA_DEVICE float output_of(const AttentionArgs& a, float sum, float factor) {
  return a.dropout.scale == 0.0 ? 0.0f : rounded_product(sum, factor);
}

}  // namespace tegula
