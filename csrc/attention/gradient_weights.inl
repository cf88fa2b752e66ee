// Weights P and score gradients dS of one block of rows against one key tile.
#pragma once

#include "gradient_norms.inl"

namespace tegula {
namespace {

// Consecutive blocks whose weights lie side by side: column c belongs to row slot + c.
template <class C>
struct Group {
  int first = 0, blocks = 0;
  int64_t slot = 0;
  int columns = 0;   // of all blocks
  int rows_end = 0;  // the column behind the last row; what fills its vector adds nothing
  bool finite = true;
  bool mixed = false;  // some pair of the tile is hidden
  // Keys of the tile that each vector of columns takes part in, in whole groups of keys.
  KeyRange ranges[kGradientRows<C> / kLanes<C>];

  TEGULA_INLINE int column_of(const Block<C>& block) const {
    return static_cast<int>(block.slot - slot);
  }
};

// Whole groups of keys, tile-relative, that hold the keys some row of vector j sees.
template <class T, class F>
TEGULA_INLINE KeyRange hull_of(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                               int j) {
  const KeyRange range = c.tile.local(block.lanes[j].some);
  return range.empty() ? KeyRange{0, 0} : c.in_steps(range);
}

// exp(score - lse), for the three units that scores may have (context.inl). They are those of
// the forward pass, bit by bit, so that what rounding does to a score it also did to its row's
// log-sum-exp. Errors of the exponent would go into all gradients of a row: lse comes as a sum
// of two numbers where it was multiplied.
template <bool kLog2, class F, class C = typename F::Compute>
TEGULA_INLINE Vec<C> probability(Vec<C> score, Vec<C> shift, Vec<C> rest, C exponent) {
  if constexpr (F::kUnitValues > 1) {
    return weight_of<true, F>(score, shift, exponent);
  } else if constexpr (kLog2) {
    return exp2<C>(score - shift, -rest);
  } else {
    return exp<C>(score - shift);
  }
}

// Scores of row vector j become weights; inside `clear` every row sees every key.
template <bool kLog2, bool kFar, class T, class F>
TEGULA_NOINLINE void weigh_vector(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                  int j, KeyRange hull, KeyRange clear,
                                  typename F::Compute* weights) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  const int width = block.width();
  const C* scores = c.w.scores + j * kN;
  const C* additive = c.w.additive + j * kN;
  C* tangents = c.s.tangent + j * kN;
  const Vec<C> shift = load(c.s.shift + block.slot + j * kN);
  const Vec<C> rest = load(c.s.shift_rest + block.slot + j * kN);
  const Vec<Int<C>> split = load(c.s.split + block.slot + j * kN);
  const C exponent = c.exponent;
  Place<C> at = rows_at(c, block.slot + j * kN);
  const bool modified = c.modified(), capped = c.a.softcap > 0;
  constexpr int kGapped = 2;
  const auto weigh = [&](int begin, int end, auto masked) {
    for (int key = begin; key < end; ++key) {
      at.key = broadcast(static_cast<Int<C>>(c.tile.begin + key));
      Vec<C> score = load(scores + key * width);
      if (modified) {
        Vec<C> tangent;
        score = with_options(c, score, at, additive + key * width, &tangent);
        if (capped) store(tangents + key * width, tangent);
      }
      if constexpr (masked.value) score = visible_or<masked.value == kGapped>(score, at);
      Vec<C> weight = probability<kLog2, F>(score, shift, rest, exponent);
      if constexpr (kFar) {  // a rest that is no small one goes first
        weight = split ? probability<kLog2, F>((score - shift) - rest, Vec<C>{}, Vec<C>{}, exponent)
                       : weight;
      }
      // The log-sum-exp of a row that sees a NaN is NaN; still nothing hidden takes part.
      if (masked.value || modified) weight = score == -kInfinity<C> ? Vec<C>{} : weight;
      store(weights + key * kGradientRows<C>, weight);
    }
  };
  if (clear.empty()) clear = {hull.end, hull.end};
  const auto weigh_masked = [&](int begin, int end) {
    c.gapped ? weigh(begin, end, Constant<kGapped>{}) : weigh(begin, end, Constant<1>{});
  };
  weigh_masked(hull.begin, clear.begin);
  weigh(clear.begin, clear.end, Constant<0>{});
  weigh_masked(clear.end, hull.end);
}

// Keeps P in `undropped` and leaves 0 in the weights that dropout takes away.
template <class T, class F>
TEGULA_NOINLINE void drop_vector(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                 int j, KeyRange hull, typename F::Compute* weights) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  C* undropped = c.s.undropped + j * kN;
  for (int key = hull.begin; key < hull.end; key += kKeyQuad) {
    Vec<UInt<C>> words[kKeyQuad];
    dropout_words(c, block.slot + j * kN, key, words);
    for (int t = 0; t < kKeyQuad; ++t) {
      C* at = weights + (key + t) * kGradientRows<C>;
      const Vec<C> weight = load(at);
      store(undropped + (key + t) * block.width(), weight);
      store(at, words[t] >= UInt<C>(c.a.dropout.threshold) ? weight : Vec<C>{});
    }
  }
}

// dS = P (M G v^T - delta) of row vector j, times the softcap's derivative where `capped`.
// With kCareful a weight of zero, as of a hidden key, has dS = 0 whatever it meets.
template <bool kCareful, class T, class F>
TEGULA_NOINLINE void slope_vector(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                  int j, KeyRange hull, bool capped,
                                  const typename F::Compute* weights, typename F::Compute* slopes) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  const int width = block.width();
  const C* products = c.w.scores + j * kN;
  const Vec<C> delta = load(c.s.delta + block.slot + j * kN);
  const bool drops = c.a.dropout.active();
  const C keep_scale = static_cast<C>(c.a.dropout.scale);
  for (int key = hull.begin; key < hull.end; ++key) {
    const Vec<C> product = load(products + key * width);
    Vec<C> weight = load(weights + key * kGradientRows<C>);
    Vec<C> slope;
    if (kCareful && drops) {
      const Vec<C> kept = weight;
      weight = load(c.s.undropped + key * width + j * kN);
      slope = kept == C(0) ? -(weight * delta) : weight * (product * keep_scale - delta);
    } else {
      slope = weight * (product - delta);
    }
    if constexpr (kCareful) {
      if (capped) slope = slope * load(c.s.tangent + key * width + j * kN);
      slope = weight == C(0) ? Vec<C>{} : slope;
    }
    store(slopes + key * kGradientRows<C>, slope);
  }
}

// The rows that only fill the block's last vector weigh nothing, whatever infinite keys and values
// make of them.
template <class C>
TEGULA_NOINLINE void clear_filling(const Block<C>& block, KeyRange range, C* weights, C* slopes) {
  const auto real = lane_numbers<Int<C>>() < static_cast<Int<C>>(block.rows % kLanes<C>);
  C* const both[] = {weights, slopes};
  for (int64_t at = range.begin * kGradientRows<C>; at < range.end * kGradientRows<C>;
       at += kGradientRows<C>) {
    for (C* numbers : both) store(numbers + at, real ? load(numbers + at) : Vec<C>{});
  }
}

// Every row sees every key of the tile, and nothing changes the products.
template <class T, class F>
TEGULA_INLINE bool is_plain(GradContext<T, F>& c, const Block<typename F::Compute>& block) {
  return !c.modified() && !c.a.dropout.active() && covers_tile(c, block) &&
         c.tile.count % kGroupRows == 0;
}

// Weights and slopes of a block at its columns of the group. Returns true when every row
// sees every key of the tile and nothing changed the products.
template <class T, class F>
TEGULA_NOINLINE bool differentiate_block(GradContext<T, F>& c, Group<typename F::Compute>& group,
                                         const Block<typename F::Compute>& block, bool capped) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  const int column = group.column_of(block), vectors = block.vectors();
  C* weights = c.s.weights + column;
  C* slopes = c.s.slopes + column;
  KeyRange* ranges = group.ranges + column / kN;
  const bool whole = is_plain(c, block);
  const bool log2 = c.exponent == 1;
  const auto weigh =
      c.s.far[block.number]
          ? (log2 ? weigh_vector<true, true, T, F> : weigh_vector<false, true, T, F>)
          : (log2 ? weigh_vector<true, false, T, F> : weigh_vector<false, false, T, F>);
  if (c.additive) load_additive(c, block);
  for (int j = 0; j < vectors; ++j) {
    ranges[j] = whole ? KeyRange{0, c.tile.count} : hull_of(c, block, j);
  }
  multiply_ranges(c, score_product(c, block), vectors, ranges);
  for (int j = 0; j < vectors; ++j) {
    const KeyRange clear =
        whole ? ranges[j] : intersect(c.tile.local(block.lanes[j].every), ranges[j]);
    weigh(c, block, j, ranges[j], clear, weights + j * kN);
    if (c.a.dropout.active()) drop_vector(c, block, j, ranges[j], weights + j * kN);
  }
  const Product<F> products = {
      reinterpret_cast<const char*>(c.s.value_units_of_keys +
                                    c.tile_key() * c.s.packed_value_units),
      c.s.packed_value_units * static_cast<int64_t>(sizeof(typename F::Unit)),
      c.s.value_units,
      c.grads_of(block),
      block.width(),
      c.w.scores};
  multiply_ranges(c, products, vectors, ranges);
  for (int j = 0; j < vectors; ++j) {
    if (whole) {
      slope_vector<false>(c, block, j, ranges[j], false, weights + j * kN, slopes + j * kN);
    } else {
      slope_vector<true>(c, block, j, ranges[j], capped, weights + j * kN, slopes + j * kN);
    }
  }
  // Behind the group's last row nothing is added.
  if (block.rows < block.width() && column + block.width() < group.columns) {
    const int last = vectors - 1;
    clear_filling(block, ranges[last], weights + last * kN, slopes + last * kN);
  }
  return whole;
}

}  // namespace
}  // namespace tegula
