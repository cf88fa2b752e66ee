// Gradients of attention, tile by tile: the weights are computed again from q, k and the
// log-sum-exp, so nothing of size Lq x Lk is stored between the passes or here.
//
// With P the weights (0 where a key is hidden), M the dropout factors (0 or 1 / (1 - p)),
// G = grad_out and x the score before softcap:
//   dv = (P M)^T G
//   dS = P (M G v^T - delta)     delta = rowsum(G out), once per row
//   dx = dS softcap'(x)
//   dq = scale dx k     dk = scale dx^T q
//   dbias = dS, summed over the axes along which bias repeats
//   dsink = -sum over rows of exp(sink - lse) delta
//
// Shapes are those of attention.h; grad_out is like out, each gradient like its input. Key
// and value gradients are summed over the query heads that share a key/value head.
//
// The same bits for any number of threads: a unit (batch entry, key/value head) is cut into
// cells of kGradientKeys keys and kRowChunk rows. Inside a cell sums have a fixed order;
// dq adds up its cells by key, dk and dv by row, wherever they were computed.
//
// Cost per visible pair: 3 D + 2 Dv multiply-adds.
#pragma once

#include "attention.h"

namespace tegula {

// Keys of one cell.
inline constexpr int64_t kGradientKeys = 256;

struct AttentionGradArgs : AttentionArgs {  // out and lse are inputs here
  View grad_out;
  View dq, dk, dv;
  View dbias;  // of bias's shape, strides 0 where it repeats; empty: not wanted
  double* dsinks = nullptr;
  void* delta = nullptr;  // B H Lq numbers, float or double; null: not wanted
};

// A task is a whole unit, or the cells of one key chunk, or those of one row chunk. A part of
// a unit leaves sums in `partial`: dq of all rows (query_bytes of it), or dk and dv of all keys
// (key_bytes).
struct AttentionGradKernels {
  int64_t row_chunk;
  int64_t bias_rows;  // of a task that owns entries of dbias
  size_t (*scratch_bytes)(const AttentionGradArgs&, int64_t rows);
  size_t (*query_bytes)(const AttentionGradArgs&, int64_t rows);  // of partial sums
  size_t (*key_bytes)(const AttentionGradArgs&);
  void (*backward)(const AttentionGradArgs&, const AttentionTask&, void* scratch);
  // Adds `count` partial dq of the task's rows, `step` bytes apart and of key chunks
  // chunk_begin on, to `total` and, with `last`, writes dq.
  void (*finish_queries)(const AttentionGradArgs&, const AttentionTask&, const char* partials,
                         size_t step, int64_t count, char* total, bool last);
  // Adds `count` partial dk and dv of key chunk chunk_begin, and writes them.
  void (*finish_keys)(const AttentionGradArgs&, const AttentionTask&, const char* partials,
                      size_t step, int64_t count);
  // dbias of the entries that the task owns, see bias_gradient.inl.
  size_t (*bias_scratch_bytes)(const AttentionGradArgs&);
  void (*bias)(const AttentionGradArgs&, const AttentionTask&, void* scratch);
};

// Runs the plan on up to `threads` threads (0: the setting).
void attention_backward(const AttentionGradArgs& args, int threads);

}  // namespace tegula
