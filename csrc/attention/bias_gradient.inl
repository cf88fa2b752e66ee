// dbias: the score gradients dS, summed over whatever bias is repeated along.
//
// A pass of its own, for those whom the units cannot serve (bias_slopes.inl): it computes the
// weights and slopes again, so that one task can own an entry of dbias and sum over batch
// entries and heads in order, the same.
// Cost per visible pair: D + Dv multiply-adds.
#pragma once

#include "backward_kernel.inl"

namespace tegula {
namespace {

// Sums of one task: of a tile of pairs, in float32 (float64), and of its columns or rows where
// dbias repeats along queries or keys; those add up what cancels.
template <class C>
struct BiasSums {
  C pairs[kGradientKeys][kGradientRows<C>];
  double of_key[kGradientKeys];
  double of_row[kGradientRows<C>];
  double all;
};

// Adds dS of one batch entry and head for rows [row_begin, row_end) and one chunk of keys.
template <class T, class F>
TEGULA_NOINLINE void add_slopes(const AttentionGradArgs& g, const AttentionTask& task,
                                BiasSums<typename F::Compute>& sums, void* scratch) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  GradContext<T, F> c(g, task, scratch, nullptr);
  c.begin();
  c.enter_chunk(task.chunk_begin);
  bool packed = false;
  for (int b = 0; b < c.block_count; ++b) {
    const Block<C>& whole = c.w.blocks[b];
    if (!c.sees_chunk(whole)) continue;
    if (!packed) c.pack_chunk();
    packed = true;
    c.pack_rows(b);
    const int64_t first_row = c.unit_row(whole) - task.row_begin;
    for (int32_t begin = 0; begin < c.chunk_count; begin += kGradientTile) {
      c.enter_chunk_tile(begin);
      const Block<C>* seen = in_tile(c, whole);
      if (seen == nullptr) continue;
      const Block<C>& block = *seen;
      Group<C> group;
      group.slot = block.slot;
      differentiate_block(c, group, block, false);
      for (int j = 0; j < block.vectors(); ++j) {
        const int rows = static_cast<int>(smaller(kN, block.rows - j * kN));
        const int end = static_cast<int>(smaller(group.ranges[j].end, c.tile.count));
        for (int key = group.ranges[j].begin; key < end; ++key) {
          const C* slopes = c.s.slopes + key * kGradientRows<C> + j * kN;
          C* to = sums.pairs[begin + key] + first_row + j * kN;
          if (rows == kN) {
            store_unaligned(to, load_unaligned(to) + load(slopes));
          } else {
            for (int i = 0; i < rows; ++i) to[i] += slopes[i];
          }
        }
      }
    }
  }
}

template <class B, class C>
TEGULA_NOINLINE void write_bias(const View& dbias, int64_t offset, const C* sums, int64_t count,
                                int64_t dbias_step) {
  B* to = dbias.at<B>(offset);
  for (int64_t i = 0; i < count; ++i) store_one<C>(to + i * dbias_step, sums[i]);
}

// `count` entries of dbias, dbias_step apart.
template <class C>
TEGULA_INLINE void store_bias(const View& dbias, int64_t offset, const C* sums, int64_t count,
                              int64_t dbias_step) {
  switch (dbias.dtype) {
    case DType::kFloat64: return write_bias<double>(dbias, offset, sums, count, dbias_step);
    case DType::kFloat16: return write_bias<Half>(dbias, offset, sums, count, dbias_step);
    case DType::kBFloat16: return write_bias<BFloat16>(dbias, offset, sums, count, dbias_step);
    default: return write_bias<float>(dbias, offset, sums, count, dbias_step);
  }
}

// The task owns the entries of dbias for queries [row_begin, row_end) and key chunks
// [chunk_begin, chunk_end) of (batch, first_head) and of all that share them.
template <class T, class F>
void attention_bias_task(const AttentionGradArgs& g, const AttentionTask& task, void* scratch) {
  using C = typename F::Compute;
  auto& sums = *static_cast<BiasSums<C>*>(scratch);
  void* rest = static_cast<char*>(scratch) + round_up(sizeof(BiasSums<C>), 64);
  const View& dbias = g.dbias;
  const auto offset_of = [&](int64_t batch, int64_t head) {
    return dbias.lead_offset(batch, dbias.rank - 3) + head * dbias.step(2);
  };
  const int64_t offset = offset_of(task.batch, task.first_head);
  const bool along_rows = dbias.repeats(1), along_keys = dbias.repeats(0);
  if (along_rows) fill(sums.of_key, kGradientKeys, 0.0);
  sums.all = 0;
  for (int64_t row = task.row_begin; row < task.row_end; row += kGradientRows<C>) {
    const int64_t rows = smaller(kGradientRows<C>, task.row_end - row);
    if (along_keys) fill(sums.of_row, kGradientRows<C>, 0.0);
    for (int64_t chunk = task.chunk_begin; chunk < task.chunk_end; ++chunk) {
      const int64_t first_key = chunk * kGradientKeys;
      const int64_t keys = smaller(kGradientKeys, g.k_len - first_key);
      fill(&sums.pairs[0][0], kGradientKeys * kGradientRows<C>, C(0));
      for (int64_t batch = 0; batch < g.batch; ++batch) {
        for (int64_t head = 0; head < g.heads; ++head) {
          if (offset_of(batch, head) != offset) continue;
          AttentionTask part = task;
          part.batch = batch, part.first_head = head;
          part.row_begin = row, part.row_end = row + rows;
          part.chunk_begin = chunk, part.chunk_end = chunk + 1;
          add_slopes<T, F>(g, part, sums, rest);
        }
      }
      for (int64_t key = 0; key < keys; ++key) {
        for (int64_t r = 0; r < rows; ++r) {
          if (along_rows && along_keys) sums.all += sums.pairs[key][r];
          if (along_rows) sums.of_key[key] += sums.pairs[key][r];
          if (along_keys) sums.of_row[r] += sums.pairs[key][r];
        }
        if (!along_rows && !along_keys) {
          store_bias(dbias, offset + row * dbias.step(1) + (first_key + key) * dbias.step(0),
                     sums.pairs[key], rows, dbias.step(1));
        }
      }
    }
    if (along_keys && !along_rows) {
      store_bias(dbias, offset + row * dbias.step(1), sums.of_row, rows, dbias.step(1));
    }
  }
  const int64_t first_key = task.chunk_begin * kGradientKeys;
  if (along_rows && along_keys) {
    store_bias(dbias, offset, &sums.all, 1, 0);
  } else if (along_rows) {
    store_bias(dbias, offset + first_key * dbias.step(0), sums.of_key,
               smaller(kGradientKeys, g.k_len - first_key), dbias.step(0));
  }
}

template <class F>
size_t bias_scratch_bytes(const AttentionGradArgs& a) {
  using C = typename F::Compute;
  return static_cast<size_t>(round_up(sizeof(BiasSums<C>), 64)) +
         gradient_unit_bytes<F>(a, kGradientRows<C>);
}

template <class T, class F>
constexpr AttentionGradKernels gradient_kernels_of_format() {
  using C = typename F::Compute;
  return {kRowChunk<C>,
          kGradientRows<C>,
          gradient_unit_bytes<F>,
          gradient_shared_bytes<F>,
          attention_backward_unit<T, F>,
          attention_backward_begin<T, F>,
          attention_backward_step<T, F>,
          bias_scratch_bytes<F>,
          attention_bias_task<T, F>};
}

template <class T>
constexpr AttentionGradKernels attention_gradient_kernels() {
  if constexpr (sizeof(T) == 8) {
    return gradient_kernels_of_format<T, PlainFormat<double>>();
  } else {
    return gradient_kernels_of_format<T, PlainFormat<float>>();
  }
}
#if defined(TEGULA_ISA_BF16)
template <>
constexpr AttentionGradKernels attention_gradient_kernels<BFloat16>() {
  return gradient_kernels_of_format<BFloat16, DotFormat>();
}
#endif

}  // namespace
}  // namespace tegula
