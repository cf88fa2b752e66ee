#include "../../cuda/entries.cuh"
#include "dropout_params.h"

namespace tegula {
namespace {

TEGULA_DEVICE uint8_t keeps(const Dropout& dropout, uint32_t word) {
  return dropout.p < 1.0 && (dropout.p <= 0.0 || word >= dropout.threshold) ? 1 : 0;
}

}  // namespace

// Four columns to each thread.
extern "C" __global__ void __launch_bounds__(kDropoutThreads)
    dropout_mask(const __grid_constant__ DropoutMaskParams params) {
  const int64_t quads = (params.columns + 3) / 4, item = global_thread();
  const int64_t line = item / quads, quad = item - line * quads;
  if (line >= params.count) return;
  const Dropout& dropout = params.dropout;
  const PhiloxWords words =
      philox(dropout.current_seed(), static_cast<uint64_t>(line / params.rows),
             static_cast<uint32_t>(line % params.rows), static_cast<uint32_t>(quad));
  uint8_t* const out =
      params.lines.at<uint8_t>(entry_offset(params.lines, line)) + 4 * quad * params.step;
  uchar4 kept;
  kept.x = keeps(dropout, words.word[0]), kept.y = keeps(dropout, words.word[1]);
  kept.z = keeps(dropout, words.word[2]), kept.w = keeps(dropout, words.word[3]);
  const int64_t count = min(params.columns - 4 * quad, int64_t{4});
  if (count == 4 && params.step == 1 && reinterpret_cast<uintptr_t>(out) % 4 == 0) {
    *reinterpret_cast<uchar4*>(out) = kept;
    return;
  }
  out[0] = kept.x;
  if (count > 1) out[params.step] = kept.y;
  if (count > 2) out[2 * params.step] = kept.z;
  if (count > 3) out[3 * params.step] = kept.w;
}

}  // namespace tegula
