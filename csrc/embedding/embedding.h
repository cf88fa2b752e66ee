// The input layer of a Transformer in one pass over memory:
//
//   out[..., l, :] = dropout(weight[ids[..., l]] * scale + position + segment)
//   position = position_table[positions[..., l]], or the sinusoidal row of positions[..., l]
//   segment  = segment_table[segments[..., l]]
//
//   ids             (..., L)      any integer type, any strides
//   weight          (V, D)        float64, float32, float16 or bfloat16, any strides
//   positions       (..., L)      broadcast to ids; 0 .. L-1 when absent
//   position_table  (P, D)        any float type, or none with a Sinusoid
//   segments        (..., L)      broadcast to ids
//   segment_table   (S, D)        any float type
//   out             (..., L, D)   the weight's type, any strides
//
// Rows whose id is `ignored`, or the pad when zero_pads is set, are exact zeros.
// Sums are float32 (float64 for float64) and rounded once. Element (lead, l, column) of
// the output draws its dropout decision as base/philox.h says; lead counts the leading
// axes of ids in C order.
//
// Cost: rows are copied from a table that no cache holds, so memory is the limit. A row
// reads D elements of weight and writes D; results too large for the caches are written
// past them, which saves reading them first. The weight's rows are asked for a few ids
// ahead. Position and segment rows should come from a near cache:
// - When those in use are far fewer than the output's rows, as 0 .. L-1 shared by a batch
//   are, they are made once, in the type of the sums. A table that has this type already
//   is read where it lies.
// - Otherwise each is made when it is needed, and kept while the next one is the same.
// - Long sequences are walked part by part: one part of every sequence, then the next.
// All of these give the same bits.
#pragma once

#include "../base/philox.h"
#include "../base/view.h"
#include "../positional_encoding/positional_encoding.h"

namespace tegula {

struct EmbeddingArgs {
  View ids, weight, positions, position_table, segments, segment_table, out;
  bool sinusoidal = false;
  bool zero_pads = false;
  int64_t padding_idx = -1;  // -1: none
  bool has_ignored = false;
  int64_t ignored = 0;
  double scale = 1.0;
  Dropout dropout;
  int threads = 0;  // 0: the setting
};

// ValueError, TypeError or IndexError before anything is written.
void embedding(const EmbeddingArgs& args);

// ValueError or TypeError unless shapes, types and options fit.
void check_embedding(const EmbeddingArgs& args);

// The arrays that say what stands where, with one entry a row. ValueError unless positions and
// segments broadcast to ids.
struct EmbeddingRowViews {
  View ids, positions, segments, out;  // out: its rows, the last axis is gone
  int64_t length = 1, batch = 1;
};
EmbeddingRowViews embedding_row_views(const EmbeddingArgs& args);

// Where the rows of one addend come from. C is the type of the sums.
struct AddendRows {
  enum Kind { kNone, kTable, kConvert, kSinusoid };
  Kind kind = kNone;
  const void* table = nullptr;  // kTable: C, unit stride inside a row; row 0 is `first`
  int64_t table_stride = 0;
  int64_t first = 0;
  View source;  // kConvert: (rows, D) of any float type and strides
  Sinusoid sinusoid;
};

// What all rows of a call share.
struct EmbeddingPlan {
  const void* weight = nullptr;
  int64_t weight_stride = 0, weight_step = 1;
  int64_t dim = 0;
  double scale = 1.0;
  AddendRows position, segment;
  Dropout dropout;
  int64_t out_step = 1;
  bool stream = false;  // write past the caches
};

inline constexpr int64_t kEmbeddingChunk = 256;  // most rows of one kernel call
inline constexpr int kEmbeddingAhead = 8;        // ids known beyond the chunk's last

// A run of rows. Numbers are checked; the arrays that an addend does not need are unset.
struct EmbeddingRows {
  int64_t count = 0;
  int64_t ids[kEmbeddingChunk + kEmbeddingAhead];  // -1: zeros; past the end: -1 too
  int64_t positions[kEmbeddingChunk];              // kTable, kConvert
  double phases[kEmbeddingChunk];                  // kSinusoid
  int64_t segments[kEmbeddingChunk];
  int64_t out[kEmbeddingChunk];   // element offset of the row
  int64_t lead[kEmbeddingChunk];  // dropout's counter
  int64_t row[kEmbeddingChunk];
};

struct EmbeddingKernels {
  // scratch: kEmbeddingScratch arrays of padded(dim) elements of 8 bytes, 64-byte aligned
  void (*rows)(const EmbeddingPlan& plan, const EmbeddingRows& rows, void* out, void* scratch);
  // One row of an addend in the type of the sums, unit stride.
  void (*addend)(const AddendRows& addend, int64_t index, double phase, int64_t dim, void* out);
};

inline constexpr int kEmbeddingScratch = 5;
TEGULA_INLINE constexpr int64_t embedding_padded(int64_t dim) { return (dim + 63) / 64 * 64; }

}  // namespace tegula
