// The kernels' jobs without Python: arrays that a job owns, and the call that a benchmark repeats.
#pragma once

#include <cstdint>
#include <functional>

#include "../../csrc/base/dtype.h"

namespace tegula::bench {

struct Job {
  std::function<void()> run;  // owns its arrays
  double operations = 0;      // floating point, of visible pairs only; a multiply-add is two
  double bytes = 0;           // that have to move
};

// Hidden keys: none, those after the query, or those and all further than `window` behind.
enum class Mask { kFull, kCausal, kWindow };

// q (B, H, Lq, D), k (B, G, Lk, D), v (B, G, Lk, D).
struct AttentionShape {
  int64_t batch = 1, heads = 1, key_heads = 1, q_len = 1, k_len = 1, dim = 64;
  Mask mask = Mask::kFull;
  int64_t window = 0;
};

// `threads` as in the operations: 0 is the setting.
Job attention_forward_job(const AttentionShape& shape, DType dtype, int threads);
Job attention_backward_job(const AttentionShape& shape, DType dtype, int threads);
// A causal mask of this window as an array (L, L): bool, or a float type of 0 and -inf.
Job mask_fill_job(int64_t length, int64_t window, DType dtype, int threads);
// The intervals of such an array.
Job mask_scan_job(int64_t length, int64_t window, int threads);
// `count` ids in sequences of `length`, a table (V, D), sinusoidal positions.
Job embedding_job(int64_t count, int64_t length, int64_t rows, int64_t dim, DType dtype,
                  double dropout_p, int threads);
Job embedding_backward_job(int64_t count, int64_t rows, int64_t dim, DType dtype, int threads);
Job positions_job(int64_t length, int64_t dim, DType dtype, int threads);

}  // namespace tegula::bench
