// The softmax weights themselves, for those who ask: weights = exp(score - point) * factor,
// with the scores and norms of the forward pass. Costs q k^T once more and Lq x Lk numbers of
// output.
#pragma once

#include "forward_kernel.inl"

namespace tegula {
namespace {

template <class T, class F>
void attention_weights_task(const AttentionArgs& a, const AttentionTask& task, void* scratch) {
  using C = typename F::Compute;
  Context<T, F> c(a, task, Pass::kForward, scratch);
  c.w.take_tile(Pass::kForward);
  c.read_rows();
  T* out_base = a.weights.at<T>(c.batch_offset(a.weights));
  const C* norms_base = a.norms.at<C>(c.batch_offset(a.norms));
  const int64_t step = a.weights.step(0);
  for (int b = 0; b < c.block_count; ++b) {
    const Block<C>& block = c.w.blocks[b];
    c.pack_queries(block);
    for (int64_t slot = block.slot; slot < block.slot + block.rows; ++slot) {
      T* out = out_base + c.row_offset(a.weights, slot);
      for (int64_t key = 0; key < a.k_len; ++key) out[key * step] = T{};
    }
  }
  for (int32_t begin = c.sight.begin / kKeyTile<F> * kKeyTile<F>; begin < c.sight.end;
       begin += kKeyTile<F>) {
    c.enter_tile(begin);
    if (!c.sees_some(c.tile.range())) continue;
    for (int b = 0; b < c.block_count; ++b) {
      const Block<C>* seen = in_tile(c, c.w.blocks[b]);
      if (seen == nullptr) continue;
      const Block<C>& block = *seen;
      score_block(c, block);
      for (int r = 0; r < block.rows; ++r) {
        const int64_t slot = block.slot + r;
        const C* norms = norms_base + c.row_offset(a.norms, slot);
        const C point = norms[0] == -kInfinity<C> ? C(0) : norms[0];
        T* out = out_base + c.row_offset(a.weights, slot) + begin * step;
        for (int key = 0; key < c.tile.count; ++key) {
          if (!sees(c, block, r, key)) continue;
          const C score = c.w.scores[block.few ? r * kKeyTile<F> + key : key * block.width() + r];
          const Vec<C> weight = exp2<C>(broadcast((score - point) * c.exponent));
          store_one<C>(out + key * step, weight[0] * norms[1]);
        }
      }
    }
  }
}

template <class T, class F>
constexpr AttentionKernels kernels_of_format() {
  return {kBlockRows<typename F::Compute>,
          kKeyTile<F>,
          F::kUnitValues == 2,
          attention_scratch_bytes<F>,
          attention_partial_bytes<F>,
          attention_forward_task<T, F>,
          attention_finish_task<T, F>,
          attention_count_task<T, F>,
          attention_weights_task<T, F>};
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
