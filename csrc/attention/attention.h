// Attention: out = softmax(softcap(scale * q k^T) + alibi + bias over visible keys and
// sinks) v, tile by tile, with an online softmax. Nothing of size Lq x Lk exists.
//
// Shapes, with B the leading axes taken as one (..., in C order), H query heads, G
// key/value heads (G divides H; head h reads key/value head h / (H / G)):
//   q (..., H, Lq, D)   k (..., G, Lk, D)   v (..., G, Lk, Dv)   out (..., H, Lq, Dv)
//   lse (..., H, Lq)    weights (..., H, Lq, Lk)
// Any strides. q, k, v, out and weights share one float type; scores, softmax and sums
// over keys are float32 (float64 for float64), and results are rounded once, at the end.
//
// Which keys a query sees is one half-open interval [lo, hi) per row, or two: without the
// keys [gap_lo, gap_hi) between them; minus what a dense mask or a bias of -inf takes away. A
// masked key takes part in nothing: not even a NaN of its key or value row is seen. A row that sees
// no key gives 0 and lse -inf.
//
// A row's bits depend on its own query, keys and options alone. Key tiles lie at
// absolute multiples of the tile size, sums run over keys in order, a masked key adds an
// exact zero, and keys are folded in chunks of kKeyChunk whether or not threads share
// them. So threads, batch, Lq and masked keys behind the last visible one change nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../base/philox.h"
#include "../base/view.h"

namespace tegula {

// Keys of one independent softmax; partial results are merged in order.
inline constexpr int64_t kKeyChunk = 1024;

// Inputs beyond this many bytes are worth sending for ahead of their use.
inline constexpr int64_t kSecondCache = int64_t{1} << 20;

// Pieces of `size` that `count` of something make.
TEGULA_INLINE int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

struct AttentionArgs {
  View q, k, v, out;
  View lse;             // empty: not wanted
  View weights;         // empty: not wanted; needs norms
  View norms;           // (..., H, Lq, 2), float32 or float64: reference point and factor of a row,
                        // weight = exp(score - point) * factor
  View lo, hi;          // int32 (B, H, Lq), strides 0 where they broadcast; empty: [0, Lk)
  View gap_lo, gap_hi;  // likewise; empty: no row has a gap
  View dense;           // bool (B, H, Lq, Lk), likewise; empty: none
  View cells;           // the summary of dense, see mask.h: made by whoever runs the plan
  View bias;            // any float type, (..., H, Lq, Lk), likewise; empty: none
  const double* alibi = nullptr;  // H slopes
  const double* sinks = nullptr;  // H logits
  double scale = 1.0;
  double softcap = 0.0;  // 0: none
  Dropout dropout;
  int64_t batch = 0, heads = 0, key_heads = 0;
  int64_t q_len = 0, k_len = 0, dim = 0, value_dim = 0;
};

// Rows [row_begin, row_end) of one unit: queries [query_begin, query_end) of consecutive heads
// that share a key/value head, head by head. Row r is query query_begin + r % n of head
// first_head + r / n, with n = query_end - query_begin.
struct AttentionTask {
  int64_t batch = 0;
  int64_t first_head = 0;
  int64_t query_begin = 0, query_end = 0;
  int64_t row_begin = 0, row_end = 0;
  // Keys of the unit; of other keys its rows see none.
  int64_t key_begin = 0, key_end = 0;
  // Key chunks to visit. With `partial` the unnormalised result of these chunks goes
  // there (partial_bytes of it); without, the finished rows go to out.
  int64_t chunk_begin = 0, chunk_end = 0;
  void* partial = nullptr;
  // The task whose rows are sent for meanwhile; null: none.
  const AttentionTask* next = nullptr;
};

// What the forward pass of some tasks does with the mask. A tile is a block of rows by a tile of
// keys.
struct TileCounts {
  int64_t full = 0, mixed = 0, skipped = 0;
  int64_t blocks = 0;
  int64_t few = 0;  // blocks of so few rows that they go another way
};

// One instruction set's kernels for one float type.
struct AttentionKernels {
  int64_t block_rows;  // queries that share a score tile: good task sizes are multiples
  int64_t key_tile;
  bool pairs;  // multiplies pairs of bfloat16
  size_t (*scratch_bytes)(const AttentionArgs&, int64_t rows);
  size_t (*partial_bytes)(const AttentionArgs&, int64_t rows);
  void (*forward)(const AttentionArgs&, const AttentionTask&, void* scratch);
  // Joins `count` partial results of the task's rows, `step` bytes apart, and finishes them.
  void (*finish)(const AttentionArgs&, const AttentionTask&, const char* partials, size_t step,
                 int64_t count, void* scratch);
  // Adds the task's tiles.
  void (*count)(const AttentionArgs&, const AttentionTask&, TileCounts*, void* scratch);
  // The weights of the task's rows, from the norms that forward left.
  void (*weights)(const AttentionArgs&, const AttentionTask&, void* scratch);
};

// Multiply-adds of the forward pass, from the intervals of some rows.
double attention_work(const AttentionArgs& args);

// Bytes of q, k, v and out.
int64_t attention_bytes(const AttentionArgs& args);

// Runs the plan on up to `threads` threads (0: the setting).
void attention_forward(const AttentionArgs& args, int threads);

}  // namespace tegula
