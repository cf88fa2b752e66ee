// Scores of one block of rows against one key tile: products, options and masks.
//
// Two layouts. Many rows: scores[key][row], rows in the lanes, so that softmax runs
// down the columns and nothing is reduced across lanes. Few rows: scores[row][key], keys
// in the lanes. A score is the same chain of operations in both.
#pragma once

#include "key_lanes.inl"

namespace tegula {
namespace {

// Key rows times row columns: out[key][row], both [..][width].
template <class F>
struct Product {
  const char* keys;  // rows of units
  int64_t key_bytes, units;
  const typename F::Unit* columns;
  int width;
  typename F::Compute* out;
};

// q k^T of a block of many rows.
template <class T, class F>
TEGULA_INLINE Product<F> score_product(Context<T, F>& c, const Block<typename F::Compute>& block) {
  if (c.tile.keys == nullptr) c.pack_keys();
  return {c.tile.keys, c.tile.key_bytes, c.w.units, c.queries_of(block), block.width(), c.w.scores};
}

// For keys [begin, end) of the tile and kVectors vectors of rows from `first` on.
template <int kVectors, class T, class F>
TEGULA_INLINE void multiply_columns(Context<T, F>& c, const Product<F>& p, int first, int begin,
                                    int end, Vec<typename F::Compute>* best) {
  const auto* columns = p.columns + first * kLanes<typename F::Compute>;
  auto* out = p.out + first * kLanes<typename F::Compute>;
  const char* keys = p.keys + begin * p.key_bytes;
  const int64_t step = p.key_bytes, units = p.units;
  const int width = p.width;
  int key = begin;
  for (; key + kScoreRows <= end; key += kScoreRows, keys += kScoreRows * step) {
    if (c.ahead_count > 0) c.prefetch_ahead();
    score_tile<F, kScoreRows, kVectors>(keys, step, units, columns, width, out + key * width, width,
                                        best);
  }
  for (; key + 2 <= end; key += 2, keys += 2 * step) {
    score_tile<F, 2, kVectors>(keys, step, units, columns, width, out + key * width, width, best);
  }
  if (key < end) {
    score_tile<F, 1, kVectors>(keys, step, units, columns, width, out + key * width, width, best);
  }
}

// The same for row vectors [first, first + count).
template <class T, class F>
TEGULA_NOINLINE void multiply_range(Context<T, F>& c, const Product<F>& p, int first, int count,
                                    int begin, int end, Vec<typename F::Compute>* best) {
  switch (count) {
    case 1: return multiply_columns<1>(c, p, first, begin, end, best);
    case 2: return multiply_columns<2>(c, p, first, begin, end, best);
    default:
      if constexpr (kBlockVectors > 2) multiply_columns<3>(c, p, first, begin, end, best);
  }
}

// The same where each row vector needs a key range of its own.
template <class T, class F>
TEGULA_NOINLINE void multiply_ranges(Context<T, F>& c, const Product<F>& p, int vectors,
                                     const KeyRange* ranges) {
  KeyRange all{kKeyTile<F>, 0};
  for (int j = 0; j < vectors; ++j) {
    if (ranges[j].empty()) continue;
    if (ranges[j].begin < all.begin) all.begin = ranges[j].begin;
    if (ranges[j].end > all.end) all.end = ranges[j].end;
  }
  const int end = static_cast<int>(smaller(all.end, c.tile.count));
  // Runs of key groups that the same vectors need are computed together.
  Vec<typename F::Compute> unused[kBlockVectors] = {};
  int run_begin = all.begin, run_first = 0, run_count = 0;
  for (int key = all.begin; key < end; key += kScoreRows) {
    int first = -1, last = -1;
    for (int j = 0; j < vectors; ++j) {
      if (ranges[j].begin >= key + kScoreRows || ranges[j].end <= key) continue;
      if (first < 0) first = j;
      last = j;
    }
    const int count = first < 0 ? 0 : last - first + 1;
    if (count == run_count && (count == 0 || first == run_first)) continue;
    if (run_count > 0) multiply_range(c, p, run_first, run_count, run_begin, key, unused);
    run_begin = key, run_first = first, run_count = count;
  }
  if (run_count > 0) multiply_range(c, p, run_first, run_count, run_begin, end, unused);
}

// ---- bias and dense mask ----

// kLanes<C> bias entries from p on, zeros behind the first `count`.
template <class C, class T>
TEGULA_INLINE Vec<C> load_bias(const T* p, int64_t stride, int64_t count) {
  if constexpr (sizeof(C) == 8 && sizeof(T) < 8) {
    Vec<C> lanes{};
    for (int64_t i = 0; i < kLanes<C> && i < count; ++i) {
      lanes[i] = static_cast<C>(load_one<float>(p + i * stride));
    }
    return lanes;
  } else if constexpr (sizeof(T) > sizeof(C)) {
    // A finite bias stays finite: only an infinite one masks.
    constexpr double kLargest = __FLT_MAX__;
    Vec<C> lanes{};
    for (int64_t i = 0; i < kLanes<C> && i < count; ++i) {
      double term = p[i * stride];
      if (term > kLargest && term < kInfinity<double>) term = kLargest;
      if (term < -kLargest && term > -kInfinity<double>) term = -kLargest;
      lanes[i] = static_cast<C>(term);
    }
    return lanes;
  } else {
    return load_strided<C>(p, stride, count);
  }
}

// All ones in the lanes whose entry of a bool row is 0.
template <class C>
TEGULA_INLINE Vec<Int<C>> forbidden(const uint8_t* p, int64_t stride, int64_t count) {
  using Bytes = typename VecType<uint8_t, kLanes<C>>::Aligned;
  Bytes bytes{};
  if (stride == 1 && count >= kLanes<C>) {
    __builtin_memcpy(&bytes, p, sizeof bytes);
  } else {
    for (int64_t i = 0; i < kLanes<C> && i < count; ++i) bytes[i] = p[i * stride];
  }
  return __builtin_convertvector(bytes, Vec<Int<C>>) == Int<C>(0);
}

// Fills c.w.additive, for the keys that the block sees, in the layout of the scores: the bias (of
// type T, null: none), and -inf where the dense mask (null: none) says no.
template <class B, class T, class F>
TEGULA_NOINLINE void fill_additive(Context<T, F>& c, const Block<typename F::Compute>& block) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  const AttentionArgs& a = c.a;
  const int64_t bias_step = a.bias ? a.bias.step(0) : 0;
  const int64_t dense_step = a.dense ? a.dense.step(0) : 0;
  const B* bias = nullptr;
  const uint8_t* dense = nullptr;
  if (a.bias) bias = a.bias.at<B>(c.batch_offset(a.bias) + c.tile.begin * bias_step);
  if (a.dense) {
    dense = a.dense.at<uint8_t>(c.task.batch * a.dense.stride[0] + c.tile.begin * dense_step);
  }
  Vec<Int<C>> hidden{};
  const auto terms_of = [&](int64_t bias_row, int64_t dense_row, int key) {
    const int64_t count = c.tile.count - key;
    Vec<C> terms{};
    if (bias != nullptr) terms = load_bias<C>(bias + bias_row + key * bias_step, bias_step, count);
    if (dense != nullptr) {
      terms = forbidden<C>(dense + dense_row + key * dense_step, dense_step, count)
                  ? broadcast(-kInfinity<C>)
                  : terms;
    }
    hidden |= terms == -kInfinity<C>;
    return terms;
  };
  const int width = block.width();
  // In steps as large as any in which scores are looked at.
  constexpr int kStep = 16;
  static_assert(kStep % kN == 0 && kStep % kKeyQuad == 0 && kStep % kGroupRows == 0);
  const KeyRange range = c.tile.local(block.sight.some);
  const int begin = range.begin / kStep * kStep;
  const int end = static_cast<int>(smaller(round_up(range.end, kStep), c.tile.count));
  for (int j = 0; j < block.vectors(); ++j) {
    int64_t bias_rows[kN] = {}, dense_rows[kN] = {};
    for (int i = 0; i < kN; ++i) {
      const int64_t slot = block.slot + j * kN + i;
      if (a.bias) bias_rows[i] = c.row_offset(a.bias, slot);
      if (a.dense) dense_rows[i] = c.row_offset(a.dense, slot);
    }
    for (int key = begin; key < end; key += kN) {
      if (block.few) {
        for (int i = 0; i < kN && j * kN + i < block.rows; ++i) {
          store(c.w.additive + (j * kN + i) * kKeyTile<F> + key,
                terms_of(bias_rows[i], dense_rows[i], key));
        }
        continue;
      }
      Vec<C> terms[kN];
      if (sizeof(B) == sizeof(C) && bias_step == 1 && dense == nullptr && key + kN <= end) {
        const B* from = bias + key;
        load_transposed<C>([&](int i) { return reinterpret_cast<const C*>(from + bias_rows[i]); },
                           terms);
        for (int i = 0; i < kN; ++i) hidden |= terms[i] == -kInfinity<C>;
      } else {
        for (int i = 0; i < kN; ++i) terms[i] = terms_of(bias_rows[i], dense_rows[i], key);
        transpose<C>(terms);
      }
      for (int i = 0; i < kN; ++i) store(c.w.additive + (key + i) * width + j * kN, terms[i]);
    }
  }
  c.tile.hides = any_lane(hidden);
}

template <class T, class F>
TEGULA_INLINE void load_additive(Context<T, F>& c, const Block<typename F::Compute>& block) {
  switch (c.a.bias ? c.a.bias.dtype : DType::kFloat32) {
    case DType::kFloat64: return fill_additive<double>(c, block);
    case DType::kFloat16: return fill_additive<Half>(c, block);
    case DType::kBFloat16: return fill_additive<BFloat16>(c, block);
    default: return fill_additive<float>(c, block);
  }
}

// ---- options and masks on a vector of scores ----

// One vector's rows and keys; the side that is not in the lanes is broadcast.
template <class C>
struct Place {
  Vec<Int<C>> key, lo, hi, query;
  Vec<Int<C>> gap_lo, gap_hi;  // only where the task has gaps
  Vec<C> slope;
};

// Rows slot, slot + 1, ... in the lanes.
template <class T, class F, class C = typename F::Compute>
TEGULA_INLINE Place<C> rows_at(Context<T, F>& c, int64_t slot) {
  Place<C> at;
  at.key = Vec<Int<C>>{};
  at.lo = load(c.w.lo + slot), at.hi = load(c.w.hi + slot);
  at.gap_lo = load(c.w.gap_lo + slot), at.gap_hi = load(c.w.gap_hi + slot);
  at.query = load(c.w.query + slot);
  at.slope = load(c.w.slope + slot);
  return at;
}

// One row in all lanes.
template <class T, class F, class C = typename F::Compute>
TEGULA_INLINE Place<C> row_at(Context<T, F>& c, int64_t slot) {
  Place<C> at;
  at.key = Vec<Int<C>>{};
  at.lo = broadcast(c.w.lo[slot]), at.hi = broadcast(c.w.hi[slot]);
  at.gap_lo = broadcast(c.w.gap_lo[slot]), at.gap_hi = broadcast(c.w.gap_hi[slot]);
  at.query = broadcast(c.w.query[slot]);
  at.slope = broadcast(c.w.slope[slot]);
  return at;
}

// softcap(score) + ALiBi + bias; `tangent` becomes the derivative of the softcap.
template <class T, class F, class C = typename F::Compute>
TEGULA_INLINE Vec<C> with_options(Context<T, F>& c, Vec<C> score, const Place<C>& at,
                                  const C* additive, Vec<C>* tangent = nullptr) {
  if (c.score_scale != C(1)) score *= c.score_scale;
  if (c.a.softcap > 0) {
    const Vec<C> capped = tanh<C>(score);
    if (tangent != nullptr) *tangent = C(1) - capped * capped;
    score = capped * static_cast<C>(c.a.softcap);
  }
  if (c.a.alibi != nullptr) {
    const Vec<Int<C>> distance = at.key - at.query - static_cast<Int<C>>(c.a.k_len - c.a.q_len);
    score = opaque(score) + opaque(at.slope * __builtin_convertvector(distance, Vec<C>));
  }
  if (c.additive) {
    const Vec<C> term = load(additive);
    score = term == -kInfinity<C> ? term : score + term;
  }
  return score;
}

// All ones where the row sees the key. kGaps: rows may see two runs.
template <bool kGaps, class C>
TEGULA_INLINE Vec<Int<C>> is_visible(const Place<C>& at) {
  Vec<Int<C>> visible = (at.key >= at.lo) & (at.key < at.hi);
  if constexpr (kGaps) visible &= (at.key < at.gap_lo) | (at.key >= at.gap_hi);
  return visible;
}

// -inf instead of the score of a key that the row does not see.
template <bool kGaps, class C>
TEGULA_INLINE Vec<C> visible_or(Vec<C> score, const Place<C>& at) {
  return is_visible<kGaps>(at) ? score : broadcast(-kInfinity<C>);
}

// Options, masks and maxima of keys `range` (tile-relative) in row vector j; inside
// `clear` every row sees every key. kGaps: rows may see two runs.
template <bool kGaps, class T, class F>
TEGULA_NOINLINE void finish_column(Context<T, F>& c, const Block<typename F::Compute>& block, int j,
                                   KeyRange range, KeyRange clear) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  const int width = block.width();
  C* scores = c.w.scores + j * kN;
  const C* additive = c.w.additive + j * kN;
  Place<C> at = rows_at(c, block.slot + j * kN);
  Vec<C> best = load(c.w.tile_best + j * kN);
  const bool modified = c.modified();
  if (clear.empty()) clear = {range.end, range.end};
  const auto masked = [&](int begin, int end) {
    for (int key = begin; key < end; ++key) {
      at.key = broadcast(static_cast<Int<C>>(c.tile.begin + key));
      Vec<C> score = load(scores + key * width);
      if (modified) score = with_options(c, score, at, additive + key * width);
      score = visible_or<kGaps>(score, at);
      store(scores + key * width, score);
      best = max_of(best, score);
    }
  };
  masked(range.begin, clear.begin);
  for (int key = clear.begin; key < clear.end; ++key) {
    Vec<C> score = load(scores + key * width);
    if (modified) {
      at.key = broadcast(static_cast<Int<C>>(c.tile.begin + key));
      score = with_options(c, score, at, additive + key * width);
      store(scores + key * width, score);
    }
    best = max_of(best, score);
  }
  masked(clear.end, range.end);
  store(c.w.tile_best + j * kN, best);
}

TEGULA_INLINE KeyRange in_quads(KeyRange range) {
  return {range.begin / kKeyQuad * kKeyQuad, (range.end + kKeyQuad - 1) / kKeyQuad * kKeyQuad};
}

// Keys of row vector j that take part, rounded to quads, tile-relative.
template <class T, class F>
TEGULA_INLINE KeyRange quads_of(Context<T, F>& c, const Block<typename F::Compute>& block, int j) {
  const KeyRange range = c.tile.local(block.lanes[j].some);
  return range.empty() ? KeyRange{0, 0} : in_quads(range);
}

// Many rows, some of which do not see the whole tile: computes what some vector needs.
template <class T, class F>
TEGULA_NOINLINE void score_mixed_columns(Context<T, F>& c,
                                         const Block<typename F::Compute>& block) {
  KeyRange ranges[kBlockVectors];
  for (int j = 0; j < block.vectors(); ++j) ranges[j] = quads_of(c, block, j);
  multiply_ranges(c, score_product(c, block), block.vectors(), ranges);
  for (int j = 0; j < block.vectors(); ++j) {
    if (ranges[j].empty()) continue;
    const KeyRange clear = intersect(c.tile.local(block.lanes[j].every), ranges[j]);
    c.gapped ? finish_column<true>(c, block, j, ranges[j], clear)
             : finish_column<false>(c, block, j, ranges[j], clear);
  }
}

// Few rows: the keys that some row sees, in whole vectors, tile-relative.
template <class T, class F>
TEGULA_INLINE KeyRange vectors_of(Context<T, F>& c, const Block<typename F::Compute>& block) {
  constexpr int kN = kLanes<typename F::Compute>;
  static_assert(kN % kKeyQuad == 0 || kKeyQuad % kN == 0);
  constexpr int kStep = kN > kKeyQuad ? kN : kKeyQuad;
  const KeyRange range = c.tile.local(block.sight.some);
  return {range.begin / kStep * kStep, (range.end + kStep - 1) / kStep * kStep};
}

// Few rows, one row after the other.
template <class T, class F>
TEGULA_NOINLINE void score_few_rows(Context<T, F>& c, const Block<typename F::Compute>& block) {
  using C = typename F::Compute;
  const KeyRange range = vectors_of(c, block);
  for_few_rows(block, [&](auto rows) {
    score_rows<rows.value>(c, stored_keys(c), c.queries_of(block), c.w.packed_units, range);
  });
  const bool modified = c.modified();
  const auto finish_row = [&](int r, auto gaps) {
    Place<C> at = row_at(c, block.slot + r);
    Vec<C> best = broadcast(-kInfinity<C>);
    for (int key = range.begin; key < range.end; key += kLanes<C>) {
      C* scores = c.w.scores + r * kKeyTile<F> + key;
      at.key = lane_numbers<Int<C>>() + static_cast<Int<C>>(c.tile.begin + key);
      Vec<C> score = load(scores);
      if (modified) {
        score = with_options(c, score, at, c.w.additive + r * kKeyTile<F> + key);
      }
      score = visible_or<gaps.value>(score, at);
      store(scores, score);
      best = max_of(best, score);
    }
    c.w.tile_best[r] = max_across<C>(best);
  };
  for (int r = 0; r < block.rows; ++r) {
    c.gapped ? finish_row(r, Constant<1>{}) : finish_row(r, Constant<0>{});
  }
}

// Every row of the block sees every key of the tile.
template <class T, class F>
TEGULA_INLINE bool covers_tile(Context<T, F>& c, const Block<typename F::Compute>& block) {
  const KeyRange every = c.tile.local(block.sight.every);
  return every.begin <= 0 && every.end >= c.tile.count;
}

// Scores and their row maxima (tile_best). Returns true when every row sees every key of
// the tile and nothing changed the products.
template <class T, class F>
TEGULA_INLINE bool score_block(Context<T, F>& c, const Block<typename F::Compute>& block) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  if (c.additive) load_additive(c, block);
  for (int j = 0; j < block.vectors(); ++j) {
    store(c.w.tile_best + j * kN, broadcast(-kInfinity<C>));
  }
  if (block.few) {
    score_few_rows(c, block);
    return false;
  }
  const KeyRange some = c.tile.local(block.sight.some), every = c.tile.local(block.sight.every);
  if (c.modified() || some.begin != every.begin || some.end != every.end) {
    score_mixed_columns(c, block);
    return false;
  }
  // All rows see the same keys. The softmax reads whole quads of them.
  Vec<C> best[kBlockVectors];
  for (int j = 0; j < kBlockVectors; ++j) best[j] = broadcast(-kInfinity<C>);
  multiply_range(c, score_product(c, block), 0, block.vectors(), some.begin, some.end, best);
  for (int j = 0; j < block.vectors(); ++j) store(c.w.tile_best + j * kN, best[j]);
  const KeyRange quads = in_quads(some);
  const auto hide = [&](int begin, int end) {
    const int width = block.width();
    fill(c.w.scores + begin * width, (end - begin) * width, -kInfinity<C>);
  };
  hide(quads.begin, some.begin);
  hide(some.end, quads.end);
  return covers_tile(c, block) && c.tile.count % kKeyQuad == 0;
}

}  // namespace
}  // namespace tegula
