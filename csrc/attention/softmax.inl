// The online softmax of one block of rows (Milakov and Gimelshein, 2018): running
// maximum and sum, weights relative to the maximum.
#pragma once

#include "scores.inl"

namespace tegula {
namespace {

// -inf as a reference point would make NaN of a row that has seen nothing.
template <class C>
TEGULA_INLINE Vec<C> reference_point(Vec<C> best) {
  return best == -kInfinity<C> ? Vec<C>{} : best;
}

// Takes tile_best into the running maximum; sets rescale, the factor of what was summed
// relative to the old one, and shift, what the exponentials subtract.
template <class T, class F>
TEGULA_NOINLINE void advance_maximum(Context<T, F>& c, const Block<typename F::Compute>& block) {
  using C = typename F::Compute;
  for (int j = 0; j < block.vectors(); ++j) {
    const int lane = j * kLanes<C>;
    const Vec<C> before = load(c.w.best + block.slot + lane);
    const Vec<C> best = max_of(before, load(c.w.tile_best + lane));
    const Vec<C> point = reference_point<C>(best);
    store(c.w.rescale + lane, exp2<C>((before - point) * c.exponent));
    store(c.w.best + block.slot + lane, best);
    store(c.w.shift + lane, point);
  }
}

template <class T, class F>
TEGULA_NOINLINE void advance_total(Context<T, F>& c, const Block<typename F::Compute>& block) {
  using C = typename F::Compute;
  for (int j = 0; j < block.vectors(); ++j) {
    const int lane = j * kLanes<C>;
    C* total = c.w.total + block.slot + lane;
    store(total, load(total) * load(c.w.rescale + lane) + load(c.w.tile_sum + lane));
  }
}

// exp(score - maximum). The difference comes first: it is exact where it matters, while the
// rounding of a large product would show in the exponent.
template <bool kScaled, class F, class C = typename F::Compute>
TEGULA_INLINE Vec<C> weight_of(Vec<C> score, Vec<C> shift, C exponent) {
  score = score - shift;
  if constexpr (kScaled) score = score * exponent;
  if constexpr (F::kUnitValues > 1) {
    return exp2<C, Exp2ShortPolynomial>(score);
  } else {
    return exp2<C>(score);
  }
}

// The words that decide which of the keys `key` to `key` + 3 of the tile are dropped, for the
// rows from `slot` on in the lanes.
template <class T, class F, class C = typename F::Compute>
TEGULA_INLINE void dropout_words(Context<T, F>& c, int64_t slot, int key,
                                 Vec<UInt<C>> (&words)[kKeyQuad]) {
  words[0] = broadcast(static_cast<UInt<C>>((c.tile.begin + key) / kKeyQuad));
  words[1] = bits_as<UInt<C>>(load(c.w.query + slot));
  words[2] = load(c.w.lead_low + slot), words[3] = load(c.w.lead_high + slot);
  philox_lanes<UInt<C>>(c.a.dropout.seed, words);
}

// A tile's weights are summed with four chains: keys 0, 4, 8, ... of the tile, 1, 5, 9, ...
template <class Sums>
TEGULA_INLINE auto sum_of_quad(const Sums& sum) {
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Many rows: weights[unit][row] and tile_sum of row vector j over keys `range`, whole
// quads.
template <bool kScaled, bool kDrop, class T, class F>
TEGULA_NOINLINE void weigh_column(Context<T, F>& c, const Block<typename F::Compute>& block, int j,
                                  KeyRange range) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  const int width = block.width();
  const C* scores = c.w.scores + j * kN;
  typename F::Unit* weights = c.w.weights + j * kN;
  const Vec<C> shift = load(c.w.shift + j * kN);
  const C exponent = c.exponent;
  Vec<C> sum[kKeyQuad] = {};
  for (int key = range.begin; key < range.end; key += kKeyQuad) {
    Vec<C> weight[kKeyQuad];
    TEGULA_UNROLL(4)
    for (int t = 0; t < kKeyQuad; ++t) {
      weight[t] = weight_of<kScaled, F>(load(scores + (key + t) * width), shift, exponent);
      sum[t] += weight[t];
    }
    if constexpr (kDrop) {
      Vec<UInt<C>> words[kKeyQuad];
      dropout_words(c, block.slot + j * kN, key, words);
      for (int t = 0; t < kKeyQuad; ++t) {
        weight[t] = words[t] >= UInt<C>(c.a.dropout.threshold) ? weight[t] : Vec<C>{};
      }
    }
    TEGULA_UNROLL(4)
    for (int t = 0; t < kKeyQuad; t += F::kUnitValues) {
      store(weights + (key + t) / F::kUnitValues * width, F::unit_of(weight + t));
    }
  }
  store(c.w.tile_sum + j * kN, sum_of_quad(sum));
}

// Few rows: weights[row][unit] and tile_sum of row r over keys `range`, whole vectors. Summed
// in the order of a lane of weigh_column.
template <bool kScaled, bool kDrop, class T, class F>
TEGULA_NOINLINE void weigh_row(Context<T, F>& c, const Block<typename F::Compute>& block, int r,
                               KeyRange range) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  C* scores = c.w.scores + r * kKeyTile<F>;
  const Vec<C> shift = broadcast(c.w.shift[r]);
  for (int key = range.begin; key < range.end; key += kN) {
    store(scores + key, weight_of<kScaled, F>(load(scores + key), shift, c.exponent));
  }
  using Quad = typename VecType<C, kKeyQuad * sizeof(C)>::Unaligned;
  Quad sum{};
  for (int key = range.begin; key < range.end; key += kKeyQuad) {
    sum += *reinterpret_cast<const Quad*>(scores + key);
  }
  c.w.tile_sum[r] = sum_of_quad(sum);
  if constexpr (kDrop) {
    const int64_t slot = block.slot + r;
    for (int key = range.begin; key < range.end; key += kKeyQuad) {
      const PhiloxWords words = philox(
          c.a.dropout.seed, static_cast<uint64_t>(c.w.lead_high[slot]) << 32 | c.w.lead_low[slot],
          static_cast<uint32_t>(c.w.query[slot]),
          static_cast<uint32_t>((c.tile.begin + key) / kKeyQuad));
      for (int t = 0; t < kKeyQuad; ++t) {
        if (words.word[t] < c.a.dropout.threshold) scores[key + t] = 0;
      }
    }
  }
  F::units_of(scores + range.begin, c.w.weights + (r * kKeyTile<F> + range.begin) / F::kUnitValues,
              range.end - range.begin);
}

template <bool kScaled, bool kDrop, class T, class F>
TEGULA_INLINE void weigh(Context<T, F>& c, const Block<typename F::Compute>& block, bool whole) {
  if (block.few) {
    const KeyRange range = vectors_of(c, block);
    for (int r = 0; r < block.rows; ++r) weigh_row<kScaled, kDrop>(c, block, r, range);
    return;
  }
  for (int j = 0; j < block.vectors(); ++j) {
    const KeyRange range = whole ? KeyRange{0, c.tile.count} : quads_of(c, block, j);
    weigh_column<kScaled, kDrop>(c, block, j, range);
  }
}

// Scores become weights; the running maximum and sum move on.
template <class T, class F>
TEGULA_INLINE void softmax_block(Context<T, F>& c, const Block<typename F::Compute>& block,
                                 bool whole) {
  advance_maximum(c, block);
  const bool scaled = c.exponent != 1;
  if (c.a.dropout.active()) {
    scaled ? weigh<true, true>(c, block, whole) : weigh<false, true>(c, block, whole);
  } else {
    scaled ? weigh<true, false>(c, block, whole) : weigh<false, false>(c, block, whole);
  }
  advance_total(c, block);
}

}  // namespace
}  // namespace tegula
