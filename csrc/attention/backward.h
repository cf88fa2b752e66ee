// Gradients of attention, tile by tile: the weights are computed again from q, k and the
// log-sum-exp, so nothing of size Lq x Lk is stored between the passes or here.
//
// With P the weights (0 where a key is hidden), M the dropout factors (0 or 1 / (1 - p)),
// G = grad_out and x the score before softcap:
//   dv = (P M)^T G
//   dS = P (M G v^T - delta)     delta = rowsum(G out) - grad_lse, once per row
//   dx = dS softcap'(x)
//   dq = scale dx k     dk = scale dx^T q
//   dbias = dS, summed over the axes along which bias repeats
//   dsink = -sum over rows of exp(sink - lse) delta
//
// Shapes are those of attention.h; grad_out is like out, each gradient like its input. Key
// and value gradients are summed over the query heads that share a key/value head.
//
// The same bits for any number of threads: a unit (batch entry, key/value head) is cut into
// cells of kGradientKeys keys and row_chunk rows, each with sums of its own. dq adds up its
// cells by key, dk and dv by row, whoever computed them: one task all of a unit, or many.
//
// Cost per visible pair: 3 D + 2 Dv multiply-adds.
#pragma once

#include "attention.h"

namespace tegula {

// Keys of one cell.
inline constexpr int64_t kGradientKeys = 256;

// Chunks of so many keys that keys [begin, end) reach.
TEGULA_INLINE int64_t key_chunks_of(int64_t begin, int64_t end) {
  return end > begin ? (end - 1) / kGradientKeys - begin / kGradientKeys + 1 : 0;
}

struct AttentionGradArgs : AttentionArgs {  // out and lse are inputs here
  View grad_out;
  View grad_lse;  // like lse; empty: zeros
  View dq, dk, dv;
  View dbias;                   // of bias's shape, strides 0 where it repeats; empty: not wanted
  bool units_add_bias = false;  // to dbias, which has the type of sums and begins with zeros
  double* dsinks = nullptr;
  void* delta = nullptr;  // B H Lq numbers, float or double; null: not wanted
};

// What a task does with a unit that many share, in this order, once its rows are read.
enum class GradStep {
  kPackRows,   // of a row chunk
  kPackKeys,   // of a key chunk
  kCell,       // of both: its own sums, in the task's memory
  kFold,       // adds them to the unit's; the cells to the left and above have been added
  kWriteRows,  // dq of a row chunk
  kWriteKeys   // dk and dv of a key chunk
};

struct GradBytes {
  size_t unit, task;
};

// A task's rows are those of one unit: of all heads that share a key/value head.
struct AttentionGradKernels {
  int64_t row_chunk;
  int64_t bias_rows;  // of a task that owns entries of dbias
  size_t (*unit_bytes)(const AttentionGradArgs&, int64_t rows);
  GradBytes (*shared_bytes)(const AttentionGradArgs&, int64_t rows, int64_t key_chunks);
  void (*unit)(const AttentionGradArgs&, const AttentionTask&, void* memory);
  // Reads the rows of a unit that many tasks will share.
  void (*begin)(const AttentionGradArgs&, const AttentionTask&, void* memory, void* scratch);
  void (*step)(const AttentionGradArgs&, const AttentionTask&, GradStep, int64_t row_chunk,
               int64_t key_chunk, void* memory, void* scratch);
  // dbias of the entries that the task owns, see bias_gradient.inl.
  size_t (*bias_scratch_bytes)(const AttentionGradArgs&);
  void (*bias)(const AttentionGradArgs&, const AttentionTask&, void* scratch);
};

// Runs the plan on up to `threads` threads (0: the setting).
void attention_backward(const AttentionGradArgs& args, int threads);

}  // namespace tegula
