// The softmax weights themselves, for those who ask: weights = exp(score - lse), with
// the scores of the forward pass. Costs q k^T once more and Lq x Lk numbers of output.
#pragma once

#include "forward_kernel.inl"

namespace tegula {
namespace {

template <class T, class F>
void attention_weights_task(const AttentionArgs& a, const AttentionTask& task, void* scratch) {
  using C = typename F::Compute;
  Context<T, F> c(a, task, scratch);
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    T* out = a.weights.at<T>(c.row_offset(a.weights, row));
    for (int64_t key = 0; key < a.k_len; ++key) out[key * a.weights.step(0)] = T{};
  }
  for (int b = 0; b < c.block_count; ++b) c.pack_queries(c.w.blocks[b]);
  for (int32_t begin = c.sight.begin / kKeyTile * kKeyTile; begin < c.sight.end;
       begin += kKeyTile) {
    c.enter_tile(begin);
    for (int b = 0; b < c.block_count; ++b) {
      const Block<C>& block = c.w.blocks[b];
      if (intersect(block.sight.some, c.tile.range()).empty()) continue;
      if (!c.tile.packed) c.pack_tile();
      score_block(c, block);
      for (int r = 0; r < block.rows; ++r) {
        const int64_t row = block.task_row + r;
        const C lse = *a.lse.at<C>(c.row_offset(a.lse, row));
        T* out = a.weights.at<T>(c.row_offset(a.weights, row)) + begin * a.weights.step(0);
        for (int key = 0; key < c.tile.count; ++key) {
          if (!sees(c, block, r, key)) continue;
          const C score =
              c.w.scores[block.few() ? r * kKeyTile + key : key * block.width() + r];
          const C logarithm = static_cast<C>(score * c.to_natural - lse);
          const Vec<C> weight = exp2<C>(broadcast(logarithm * static_cast<C>(kLog2E)));
          store_one<C>(out + key * a.weights.step(0), weight[0]);
        }
      }
    }
  }
}

template <class T, class F>
constexpr AttentionKernels kernels_of_format() {
  return {kBlockRows<typename F::Compute>, attention_scratch_bytes<F>,
          attention_partial_bytes<F>,      attention_forward_task<T, F>,
          attention_finish_task<T, F>,     attention_weights_task<T, F>};
}

// 16-bit numbers are widened to float32, except where pairs of bfloat16 multiply.
template <class T>
constexpr AttentionKernels attention_kernels() {
  if constexpr (sizeof(T) == 8) {
    return kernels_of_format<T, PlainFormat<double>>();
  } else {
    return kernels_of_format<T, PlainFormat<float>>();
  }
}
#if defined(TEGULA_ISA_BF16)
template <>
constexpr AttentionKernels attention_kernels<BFloat16>() {
  return kernels_of_format<BFloat16, DotFormat>();
}
#endif

}  // namespace
}  // namespace tegula
