// Rows whose log-sum-exp is so large that float32 (float64) rounds away what it says.
//
// exp(score - lse) has the absolute error of lse as its relative one. Far from 0, as under a
// bias of finfo.min or with scores of 1e6, the weights of a row would not add up to 1 any more.
// Those rows look at their own keys once more and take maximum and sum apart. A row whose keys
// here are only some of those that its lse counts keeps the lse it was given: the two differ
// by more than rounding.
#pragma once

#include "gradient_rows.inl"

namespace tegula {
namespace {

// Maximum and sum of exponentials of one vector of rows.
template <class C>
struct Softmax {
  Vec<C> best = broadcast(-kInfinity<C>), sum = {};
};

// Takes the scores of row vector j over keys `hull` of the tile into `softmax`.
template <class T, class F>
TEGULA_NOINLINE void add_scores(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                int j, KeyRange hull, Softmax<typename F::Compute>& softmax) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  const int width = block.width();
  C* scores = c.w.scores + j * kN;
  Place<C> at = rows_at(c, block.slot + j * kN);
  Vec<C> best = softmax.best;
  for (int key = hull.begin; key < hull.end; ++key) {
    at.key = broadcast(static_cast<Int<C>>(c.tile.begin + key));
    Vec<C> score = load(scores + key * width);
    if (c.modified()) {
      score = with_options(c, score, at, c.w.additive + j * kN + key * width);
    }
    score = c.gapped ? visible_or<true>(score, at) : visible_or<false>(score, at);
    store(scores + key * width, score);
    best = max_of(best, score);
  }
  const Vec<C> point = reference_point<C>(best);
  Vec<C> sum = softmax.sum * exp2<C>((softmax.best - point) * c.exponent);
  for (int key = hull.begin; key < hull.end; ++key) {
    sum += exp2<C>((load(scores + key * width) - point) * c.exponent);
  }
  softmax.best = best, softmax.sum = sum;
}

// The block's softmax over all keys that it sees, tile by tile.
template <class T, class F>
TEGULA_NOINLINE void measure_block(GradContext<T, F>& c, const Block<typename F::Compute>& whole,
                                   Softmax<typename F::Compute>* softmax) {
  const Tile<F> before = c.tile;
  const KeyRange some = whole.sight.some;
  for (int32_t begin = some.begin / kGradientTile * kGradientTile; begin < some.end;
       begin += kGradientTile) {
    c.tile = {};
    c.tile.begin = begin;
    c.tile.count = static_cast<int32_t>(smaller(kGradientTile, c.a.k_len - begin));
    const auto* seen = in_tile(c, whole);
    if (seen == nullptr) continue;
    const auto& block = *seen;
    for (int32_t key = 0; key < c.tile.count; ++key) {
      pack_row<F>(c.key_row(key), c.a.k.step(0), c.a.dim, typename F::Compute(1),
                  c.s.measured_keys + key * c.w.packed_units);
    }
    c.tile.keys = reinterpret_cast<const char*>(c.s.measured_keys);
    c.tile.key_bytes = c.w.packed_units * static_cast<int64_t>(sizeof(typename F::Unit));
    if (c.additive) load_additive(c, block);
    KeyRange ranges[kBlockVectors];
    for (int j = 0; j < block.vectors(); ++j) ranges[j] = quads_of(c, block, j);
    multiply_ranges(c, score_product(c, block), block.vectors(), ranges);
    for (int j = 0; j < block.vectors(); ++j) {
      if (!ranges[j].empty()) add_scores(c, block, j, ranges[j], softmax[j]);
    }
  }
  c.tile = before;
}

// Splits the log-sum-exp of the block's far rows where it is what their keys give.
template <class T, class F>
TEGULA_NOINLINE void split_log_sums(GradContext<T, F>& c, const Block<typename F::Compute>& block) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  constexpr double kRounding = sizeof(C) == 4 ? 0x1p-21 : 0x1p-50;
  Softmax<C> softmax[kBlockVectors];
  measure_block(c, block, softmax);
  const C* lse = c.a.lse.template at<C>(c.batch_offset(c.a.lse));
  for (int r = 0; r < block.rows; ++r) {
    const int64_t slot = block.slot + r;
    const double given = lse[c.row_offset(c.a.lse, slot)];
    if (!is_far(given)) continue;
    const double best = softmax[r / kN].best[r % kN], sum = softmax[r / kN].sum[r % kN];
    const double peak = best * c.to_natural;
    double rest = __builtin_log(sum);  // of the log-sum-exp, beyond the peak
    if (c.a.sinks != nullptr) {
      const double sink = c.a.sinks[c.w.head[slot]] - peak;
      const double top = sink > rest ? sink : rest;
      rest = top + __builtin_log(__builtin_exp(rest - top) + __builtin_exp(sink - top));
    }
    const double error = given - peak - rest, size = given < 0 ? -given : given;
    if (!((error < 0 ? -error : error) <= kRounding * size)) continue;
    c.s.split[slot] = -1;
    c.s.shift[slot] = static_cast<C>(best);
    c.s.shift_rest[slot] = static_cast<C>(rest / c.to_natural);
  }
}

}  // namespace
}  // namespace tegula
