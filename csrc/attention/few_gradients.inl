// The backward pass of a unit of few rows, as of one query at a time. It is over when its keys
// have been read, so nothing is packed: keys lie in the lanes, as in the forward pass, and dk
// and dv are written without sums of their own. The bits are those of many rows.
//
//   for each tile of keys
//     weights <- exp(q k^T - lse)               [row][key], rows of kGradientTile
//     slopes  <- weights (grad_out v^T - delta)
//     dq      <- dq + slopes k
//     dk, dv  <- slopes^T q, weights^T grad_out
#pragma once

#include "gradient_weights.inl"

namespace tegula {
namespace {

// What weights and slopes of few rows are made of, and where they go.
template <class T, class F>
struct FewRows {
  const Block<typename F::Compute>& block;
  KeyRange keys;     // of the tile that some row sees
  KeyRange vectors;  // the same in whole vectors
  bool alike;        // all rows see all of them
};

template <bool kLog2, class T, class F>
TEGULA_NOINLINE void weigh_few(GradContext<T, F>& c, const FewRows<T, F>& few, int r) {
  using C = typename F::Compute;
  const int64_t slot = few.block.slot + r;
  C* weights = c.s.weights + r * kGradientTile;
  const C* scores = c.w.scores + r * kKeyTile<F>;
  const C* additive = c.w.additive + r * kKeyTile<F>;
  const Vec<C> shift = broadcast(c.s.shift[slot]), rest = broadcast(c.s.shift_rest[slot]);
  const bool modified = c.modified();
  Place<C> at = row_at(c, slot);
  for (int key = few.vectors.begin; key < few.vectors.end; key += kLanes<C>) {
    at.key = lane_numbers<Int<C>>() + static_cast<Int<C>>(c.tile.begin + key);
    Vec<C> score = load(scores + key);
    if (modified) score = with_options(c, score, at, additive + key);
    Vec<Int<C>> seen = c.gapped ? is_visible<true>(at) : is_visible<false>(at);
    if (modified) seen &= score != -kInfinity<C>;
    const Vec<C> weight = probability<kLog2, F>(score, shift, rest, c.exponent);
    store(weights + key, seen ? weight : Vec<C>{});
  }
}

// As slope_vector.
template <class T, class F>
TEGULA_NOINLINE void slope_few(GradContext<T, F>& c, const FewRows<T, F>& few, int r, bool plain) {
  using C = typename F::Compute;
  const C* weights = c.s.weights + r * kGradientTile;
  C* slopes = c.s.slopes + r * kGradientTile;
  const C* products = c.w.scores + r * kKeyTile<F>;
  const Vec<C> delta = broadcast(c.s.delta[few.block.slot + r]);
  for (int key = few.vectors.begin; key < few.vectors.end; key += kLanes<C>) {
    const Vec<C> weight = load(weights + key);
    const Vec<C> slope = weight * (load(products + key) - delta);
    store(slopes + key, !plain && weight == C(0) ? Vec<C>{} : slope);
  }
}

template <int kRows, class T, class F>
TEGULA_NOINLINE void weigh_few_rows(GradContext<T, F>& c, const FewRows<T, F>& few) {
  const auto& block = few.block;
  const bool plain = is_plain(c, block), log2 = c.exponent == 1;
  if (c.additive) load_additive(c, block);
  score_rows<kRows>(c, stored_keys(c), c.queries_of(block), c.w.packed_units, few.vectors);
  for (int r = 0; r < block.rows; ++r) {
    log2 ? weigh_few<true>(c, few, r) : weigh_few<false>(c, few, r);
  }
  score_rows<kRows>(c, stored_values(c), c.grads_of(block), c.s.packed_value_units, few.vectors);
  for (int r = 0; r < block.rows; ++r) slope_few(c, few, r, plain);
  for (int r = block.rows; r < kRows; ++r) {
    fill(c.s.weights + r * kGradientTile, kGradientTile, typename F::Compute(0));
    fill(c.s.slopes + r * kGradientTile, kGradientTile, typename F::Compute(0));
  }
}

// The tile's keys as numbers of the type of sums: where they lie, or a copy.
template <class C>
struct KeyNumbers {
  const C* first;
  int64_t stride;
};

template <class T, class F, class C = typename F::Compute>
TEGULA_INLINE KeyNumbers<C> key_numbers(GradContext<T, F>& c, KeyRange keys) {
  if constexpr (sizeof(T) == sizeof(C)) {
    if (c.a.k.step(0) == 1 && c.a.dim == c.s.dim_stride) return {c.key_row(0), c.a.k.step(1)};
  }
  c.copy_rows(c.key_row(keys.begin), c.a.k.step(1), c.a.k.step(0), keys.end - keys.begin, c.a.dim,
              c.s.key_rows + keys.begin * c.s.dim_stride);
  return {c.s.key_rows, c.s.dim_stride};
}

// dq of kRows rows from `row` on, which see all of `range`.
template <int kRows, class T, class F, class C = typename F::Compute>
TEGULA_INLINE void add_few_queries(GradContext<T, F>& c, const FewRows<T, F>& few, int row,
                                   KeyRange range, KeyNumbers<C> keys) {
  const int64_t stride = c.s.dim_stride;
  for_panels<kValueVectors<kRows>>(0, stride / kLanes<C>, [&](int64_t first, auto vectors) {
    const int64_t d = first * kLanes<C>;
    gradient_tile<SumFormat<F>, 1, kGradientTile, kRows, vectors.value>(
        c.s.slopes + row * kGradientTile + range.begin, keys.first + range.begin * keys.stride + d,
        keys.stride, range.end - range.begin, c.dq_sum + (few.block.slot + row) * stride + d,
        stride);
  });
}

// The same row by row, without a look at what a row does not see.
template <class T, class F, class C = typename F::Compute>
TEGULA_NOINLINE void add_queries_one_by_one(GradContext<T, F>& c, const FewRows<T, F>& few,
                                            KeyNumbers<C> keys) {
  const int64_t stride = c.s.dim_stride;
  const bool holes = c.additive || c.gapped;
  for (int row = 0; row < few.block.rows; ++row) {
    const KeyRange range = row_in_tile(c, few.block, row);
    if (range.empty()) continue;
    for (int key = range.begin; holes && key < range.end; ++key) {
      const bool seen = sees(c, few.block, row, key);
      for (int64_t d = 0; d < stride; d += kLanes<C>) {
        store(c.s.clean + key * stride + d,
              seen ? load_unaligned(keys.first + key * keys.stride + d) : Vec<C>{});
      }
    }
    add_few_queries<1>(c, few, row, range, holes ? KeyNumbers<C>{c.s.clean, stride} : keys);
  }
}

// One of the two results with a row for each key: to[key][d] = factor times the sum of
// weights[row][key] rows[row][d] over the rows that see the key.
template <int kRows, class T, class F, class C = typename F::Compute>
TEGULA_NOINLINE void write_few_keys(GradContext<T, F>& c, const FewRows<T, F>& few,
                                    const View& view, const C* weights, const C* rows,
                                    int64_t stride, C factor) {
  const int64_t step = view.step(0), dim = view.size(0);
  T* base = c.row_of_key(view, c.tile.begin);
  const KeyRange all =
      c.tile.local({static_cast<int32_t>(c.task.key_begin), static_cast<int32_t>(c.task.key_end)});
  for (int key = all.begin; key < all.end; ++key) {
    T* to = base + key * view.step(1);
    unsigned seen = 0;  // by which rows
    if (few.keys.begin <= key && key < few.keys.end) {
      for (int r = 0; r < few.block.rows; ++r) {
        seen |= static_cast<unsigned>(few.alike || sees(c, few.block, r, key)) << r;
      }
    }
    const bool by_all = seen + 1 == 1u << few.block.rows;
    for (int64_t d = 0; d < dim; d += kLanes<C>) {
      Vec<C> sum{};
      TEGULA_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        if (!by_all && (seen >> r & 1) == 0) continue;
        sum = SumFormat<F>::multiply_add(sum, broadcast(weights[r * kGradientTile + key]),
                                         load(rows + r * stride + d));
      }
      write_sums<C>(sum, factor, to + d * step, step, dim - d);
    }
  }
}

template <class T, class F>
TEGULA_NOINLINE void differentiate_few_tile(GradContext<T, F>& c) {
  using C = typename F::Compute;
  const Block<C>* seen = in_tile(c, c.w.blocks[0]);
  const Block<C>& block = seen == nullptr ? c.w.blocks[0] : *seen;
  FewRows<T, F> few = {block, {0, 0}, {0, 0}, false};
  for_few_rows(block, [&](auto rows) {
    constexpr int kRows = rows.value;
    if (seen != nullptr) {
      few.keys = c.tile.local(block.sight.some), few.vectors = vectors_of(c, block);
      weigh_few_rows<kRows>(c, few);
      const KeyRange every = c.tile.local(block.sight.every);
      few.alike = !c.tile.hides && every.begin == few.keys.begin && every.end == few.keys.end;
      const KeyNumbers<C> keys = key_numbers(c, few.keys);
      few.alike ? add_few_queries<kRows>(c, few, 0, few.keys, keys)
                : add_queries_one_by_one(c, few, keys);
    }
    write_few_keys<kRows>(c, few, c.g.dk, c.s.slopes, c.s.query_rows + block.slot * c.s.dim_stride,
                          c.s.dim_stride, static_cast<C>(c.g.scale));
    write_few_keys<kRows>(c, few, c.g.dv, c.s.weights,
                          c.s.grad_rows + block.slot * c.s.value_stride, c.s.value_stride,
                          static_cast<C>(c.g.dropout.scale));
  });
}

// Whether the unit is of few rows and goes this way; its rows are then packed for it.
template <class T, class F>
TEGULA_INLINE bool takes_few_rows(GradContext<T, F>& c) {
  if (c.block_count != 1 || c.w.blocks[0].rows > kFewRows) return false;
  if (c.a.softcap > 0 || c.a.dropout.active() || c.g.units_add_bias) return false;
  c.w.blocks[0].few = true;
  c.pack_rows(0);
  return c.w.blocks[0].few;
}

template <class T, class F>
TEGULA_NOINLINE void differentiate_few_rows(GradContext<T, F>& c) {
  using C = typename F::Compute;
  const int64_t count = c.slots * c.s.dim_stride;
  for_chunks(c, [&] {
    // dq adds up chunks that have sums of their own.
    c.dq_sum = c.only_keys ? c.s.dq : c.s.dq_cell;
    if (!c.only_keys) fill(c.s.dq_cell, count, C(0));
    for (int32_t key = 0; key < c.chunk_count; key += kGradientTile) {
      c.enter_chunk_tile(key);
      differentiate_few_tile(c);
    }
    if (!c.only_keys) add(c.s.dq, c.s.dq_cell, count);
  });
}

}  // namespace
}  // namespace tegula
