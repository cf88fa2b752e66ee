// The forward pass of one task, see attention.h.
//
//   for each chunk of keys                      an independent softmax
//     for each tile of keys                     read once, shared by all blocks
//       for each block of rows that sees it
//         scores  <- options(q k^T)             scores.inl
//         weights <- exp2(scores - maximum)     softmax.inl
//         sums    <- sums * rescale + weights v values.inl
//     fold the chunk into what came before
//   out <- sums / total
//
// Cost of a task of R rows that see K keys: 2 R K (D + Dv) multiply-adds; reads K (D + Dv)
// numbers of k and v, R D of q, writes R Dv.
#pragma once

#include "values.inl"

namespace tegula {
namespace {

template <class T, class F>
TEGULA_NOINLINE void attend_block(Context<T, F>& c, const Block<typename F::Compute>& block) {
  const bool whole = score_block(c, block);
  softmax_block(c, block, whole);
  add_values_block(c, block, whole);
}

// A run of cells that a dense mask shows, as a block of its own.
template <class C>
struct Part {
  Block<C> block;
  bool additive, hides;
};

// Makes the block's sums relative to the new maxima at once: rows may see any of the parts that
// are added next.
template <class T, class F>
TEGULA_NOINLINE void rescale_sums(Context<T, F>& c, const Block<typename F::Compute>& block) {
  using C = typename F::Compute;
  for (int r = 0; r < block.rows; ++r) {
    C* sum = c.w.sum + (block.slot + r) * c.w.value_stride;
    for (int64_t d = 0; d < c.w.value_stride; d += kLanes<C>) {
      store(sum + d, opaque(load(sum + d) * c.w.rescale[r]));
    }
  }
  fill(c.w.rescale, block.width(), C(1));
}

// A block that sees only parts of the tile, of which block_in_tile holds all: products are
// computed part by part, the softmax is one, with weights of zero between the parts.
template <class T, class F>
TEGULA_NOINLINE void attend_parts(Context<T, F>& c, const Block<typename F::Compute>& whole) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  constexpr int kMostParts = (kKeyTile<F> / kCellKeys + 1) / 2;
  const Block<C>& hull = c.block_in_tile;
  Part<C> parts[kMostParts];
  int count = 0;
  const auto hide = [&](int j, int key, int end) {
    for (; key < end; ++key) {
      store(c.w.scores + key * hull.width() + j * kN, broadcast(-kInfinity<C>));
    }
  };
  for (int j = 0; j < hull.vectors(); ++j) {
    store(c.w.tile_best + j * kN, broadcast(-kInfinity<C>));
    const KeyRange range = quads_of(c, hull, j);
    hide(j, range.begin, range.end);
  }
  const int32_t step = kCellKeys;
  int32_t begin = c.tile.begin;
  for (uint32_t cells = c.seen_cells; cells != 0; ++count) {
    const int hidden = __builtin_ctz(cells), seen = __builtin_ctz(~(cells >> hidden));
    begin += hidden * step;
    Part<C>& part = parts[count];
    narrow(c, whole, {begin, begin + seen * step}, part.block);
    if (c.additive) load_additive(c, part.block);
    part.additive = c.additive, part.hides = c.tile.hides;
    score_mixed_columns(c, part.block);
    // A vector between two that see the part was computed with them.
    const KeyRange keys = c.tile.local({begin, begin + seen * step});
    for (int j = 0; j < hull.vectors(); ++j) {
      const KeyRange range = quads_of(c, part.block, j);
      hide(j, keys.begin, range.empty() ? keys.end : range.begin);
      if (!range.empty()) hide(j, range.end, keys.end);
    }
    begin += seen * step;
    cells >>= hidden;
    cells >>= seen;
  }
  softmax_block(c, hull, false);
  rescale_sums(c, hull);
  for (int i = 0; i < count; ++i) {
    c.additive = parts[i].additive, c.tile.hides = parts[i].hides;
    add_values_block(c, parts[i].block, false);
  }
}

template <class T, class F>
TEGULA_NOINLINE void attend_chunk(Context<T, F>& c, int64_t chunk) {
  using C = typename F::Compute;
  fill(c.w.best, c.slots, -kInfinity<C>);
  fill(c.w.total, c.slots, C(0));
  fill(c.w.sum, c.summed_rows * c.w.value_stride, C(0));
  const int32_t chunk_begin = static_cast<int32_t>(chunk * kKeyChunk);
  const KeyRange keys = intersect(
      c.sight, {chunk_begin, static_cast<int32_t>(smaller(c.a.k_len, (chunk + 1) * kKeyChunk))});
  for (int32_t begin = keys.begin / kKeyTile<F> * kKeyTile<F>; begin < keys.end;
       begin += kKeyTile<F>) {
    c.enter_tile(begin);
    if (!c.sees_some(c.tile.range())) continue;
    for (int i = 0; i < c.block_count; ++i) {
      const Block<C>* block = in_tile(c, c.w.blocks[i]);
      if (block == nullptr) continue;
      if (c.a.cells && has_hole(c.seen_cells) && !block->few) {
        attend_parts(c, c.w.blocks[i]);
      } else {
        attend_block(c, *block);
      }
    }
  }
}

// Joins a chunk (best, total, sum) to the chunks before it (all_...).
template <class T, class F>
TEGULA_NOINLINE void fold_chunk(Context<T, F>& c) {
  using C = typename F::Compute;
  for (int64_t row = 0; row < c.slots; row += kLanes<C>) {
    const Vec<C> before = load(c.w.all_best + row), here = load(c.w.best + row);
    const Vec<C> best = max_of(before, here);
    const Vec<C> point = reference_point<C>(best);
    alignas(kVectorBytes) C old_scale[kLanes<C>], new_scale[kLanes<C>];
    store(old_scale, exp2<C>((before - point) * c.exponent));
    store(new_scale, exp2<C>((here - point) * c.exponent));
    store(c.w.all_best + row, best);
    store(c.w.all_total + row, opaque(load(c.w.all_total + row) * load(old_scale)) +
                                   opaque(load(c.w.total + row) * load(new_scale)));
    for (int i = 0; i < kLanes<C> && row + i < c.summed_rows; ++i) {
      const int64_t at = (row + i) * c.w.value_stride;
      for (int64_t d = 0; d < c.w.value_stride; d += kLanes<C>) {
        store(c.w.all_sum + at + d, opaque(load(c.w.all_sum + at + d) * old_scale[i]) +
                                        opaque(load(c.w.sum + at + d) * new_scale[i]));
      }
    }
  }
}

template <class T, class F>
TEGULA_INLINE void start_fold(Context<T, F>& c) {
  using C = typename F::Compute;
  fill(c.w.all_best, c.slots, -kInfinity<C>);
  fill(c.w.all_total, c.slots, C(0));
  fill(c.w.all_sum, c.summed_rows * c.w.value_stride, C(0));
}

// Divides by the totals, sinks included, and writes out and lse.
template <class T, class F>
TEGULA_NOINLINE void write_rows(Context<T, F>& c, const typename F::Compute* best,
                                const typename F::Compute* total, typename F::Compute* sum) {
  using C = typename F::Compute;
  const AttentionArgs& a = c.a;
  const C keep_scale = static_cast<C>(a.dropout.scale);
  const int64_t step = a.out.step(0);
  T* out_base = a.out.at<T>(c.batch_offset(a.out));
  C* lse_base = a.lse ? a.lse.at<C>(c.batch_offset(a.lse)) : nullptr;
  for (int b = 0; b < c.block_count; ++b) {
    const Block<C>& block = c.w.blocks[b];
    for (int64_t slot = block.slot; slot < block.slot + block.rows; ++slot) {
      const C weight = total[slot];
      C factor = weight == C(0) ? C(0) : C(1) / weight;
      const double peak = static_cast<double>(best[slot]) * c.to_natural;
      double lse = -__builtin_inf();
      if (a.sinks != nullptr) {
        const double sink = a.sinks[c.w.head[slot]];
        // A row without keys keeps its sinks.
        const double top = weight == C(0) || sink > peak ? sink : peak;
        if (top != -__builtin_inf() || weight != weight) {
          const double share = weight == C(0) ? 0.0 : __builtin_exp(peak - top);
          const double all = static_cast<double>(weight) * share + __builtin_exp(sink - top);
          factor = static_cast<C>(share / all);
          lse = top + __builtin_log(all);
        }
      } else if (lse_base != nullptr && weight != C(0)) {
        lse = peak + __builtin_log(static_cast<double>(weight));
      }
      if (lse_base != nullptr) lse_base[c.row_offset(a.lse, slot)] = static_cast<C>(lse);
      if (a.norms) {
        C* norms = a.norms.at<C>(c.batch_offset(a.norms) + c.row_offset(a.norms, slot));
        norms[0] = best[slot];
        norms[1] = factor;
      }
      factor *= keep_scale;
      if (a.dropout.scale == 0.0) fill(sum + slot * c.w.value_stride, a.value_dim, C(0));
      write_row(sum + slot * c.w.value_stride, factor, a.value_dim,
                out_base + c.row_offset(a.out, slot), step);
    }
  }
}

template <class T, class F>
void attention_forward_task(const AttentionArgs& a, const AttentionTask& task, void* scratch) {
  using C = typename F::Compute;
  Context<T, F> c(a, task, Pass::kForward, scratch);
  c.w.take_tile(Pass::kForward);
  c.read_rows();
  if (task.next != nullptr) {
    const AttentionTask& next = *task.next;
    const int64_t head = next.first_head, key_head = head / (a.heads / a.key_heads);
    const KeyRange keys = c.keys_ahead();
    c.look_ahead(a.out, head, next.row_begin, next.row_end);
    c.look_ahead(a.v, key_head, keys.begin, keys.end);
    c.look_ahead(a.k, key_head, keys.begin, keys.end);
    c.look_ahead(a.q, head, next.row_begin, next.row_end);
  }
  for (int b = 0; b < c.block_count; ++b) c.pack_queries(c.w.blocks[b]);
  const auto sees_chunk = [&](int64_t chunk) {
    const int64_t end = smaller(a.k_len, (chunk + 1) * kKeyChunk);
    return c.sees_some({static_cast<int32_t>(chunk * kKeyChunk), static_cast<int32_t>(end)});
  };
  if (task.partial != nullptr) {
    attend_chunk(c, task.chunk_begin);
    // A partial result is best, total and sum of all rows, in this order.
    C* to = static_cast<C*>(task.partial);
    copy(c.w.best, to, c.slots);
    copy(c.w.total, to + c.slots, c.slots);
    copy(c.w.sum, to + 2 * c.slots, c.summed_rows * c.w.value_stride);
    return;
  }
  // Nothing to fold: joined to nothing, a chunk stays as it is.
  const int64_t first = c.sight.empty() ? 0 : c.sight.begin / kKeyChunk;
  if (c.sight.end <= (first + 1) * kKeyChunk) {
    attend_chunk(c, first);
    return write_rows(c, c.w.best, c.w.total, c.w.sum);
  }
  start_fold(c);
  for (int64_t chunk = task.chunk_begin; chunk < task.chunk_end; ++chunk) {
    if (!sees_chunk(chunk)) continue;
    attend_chunk(c, chunk);
    fold_chunk(c);
  }
  write_rows(c, c.w.all_best, c.w.all_total, c.w.all_sum);
}

template <class T, class F>
void attention_finish_task(const AttentionArgs& a, const AttentionTask& task, const char* partials,
                           size_t step, int64_t count, void* scratch) {
  using C = typename F::Compute;
  Context<T, F> c(a, task, Pass::kForward, scratch);
  c.w.take_tile(Pass::kForward);
  c.read_rows();
  start_fold(c);
  for (int64_t i = 0; i < count; ++i) {
    const C* from = reinterpret_cast<const C*>(partials + step * static_cast<size_t>(i));
    copy(from, c.w.best, c.slots);
    copy(from + c.slots, c.w.total, c.slots);
    copy(from + 2 * c.slots, c.w.sum, c.summed_rows * c.w.value_stride);
    fold_chunk(c);
  }
  write_rows(c, c.w.all_best, c.w.all_total, c.w.all_sum);
}

template <class T, class F>
void attention_count_task(const AttentionArgs& a, const AttentionTask& task, TileCounts* counts,
                          void* scratch) {
  using C = typename F::Compute;
  Context<T, F> c(a, task, Pass::kForward, scratch);
  c.read_rows();
  counts->blocks += c.block_count;
  for (int b = 0; b < c.block_count; ++b) counts->few += c.w.blocks[b].few;
  for (int64_t begin = 0; begin < a.k_len; begin += kKeyTile<F>) {
    c.enter_tile(static_cast<int32_t>(begin));
    for (int b = 0; b < c.block_count; ++b) {
      const Block<C>* block = in_tile(c, c.w.blocks[b]);
      if (block == nullptr) {
        ++counts->skipped;
      } else if (covers_tile(c, *block) && !c.additive) {
        ++counts->full;
      } else {
        ++counts->mixed;
      }
    }
  }
}

template <class F>
size_t attention_scratch_bytes(const AttentionArgs& a, int64_t rows) {
  Workspace<F> w(a, rows, Pass::kForward, nullptr);
  w.take_tile(Pass::kForward);
  return reinterpret_cast<size_t>(w.next);
}

template <class F>
size_t attention_partial_bytes(const AttentionArgs& a, int64_t rows) {
  const Workspace<F> w(a, rows, Pass::kForward, nullptr);
  return static_cast<size_t>(round_up(w.rows * (2 + w.value_stride), 16)) *
         sizeof(typename F::Compute);
}

}  // namespace
}  // namespace tegula
