// What the kernels of embedding_cuda.h are given.
#pragma once

#include "../../base/philox.h"
#include "../../base/view.h"
#include "../../cuda/place.h"

namespace tegula {

// A table of which rows are taken.
struct TableRows {
  const void* data = nullptr;  // null: no table
  DType dtype = DType::kFloat32;
  bool vectors = false;  // a thread's elements are neighbours, on aligned addresses
  int64_t rows = 0;
  int64_t stride = 0, step = 0;  // from row to row, inside a row
};

struct EmbeddingParams {
  View ids, positions, segments;  // one entry a row of the output; null: none
  View out;                       // its rows
  // Shaped like positions and segments: where an entry lies in C order of the caller's array.
  View position_places, segment_places;
  TableRows weight, position_table, segment_table;
  int64_t out_step = 1;
  int64_t dim = 0;
  int64_t length = 1, batch = 1;  // rows of the output: batch * length
  bool across = false;            // a thread's rows: one of each sequence; otherwise neighbours
  const double* frequencies = nullptr;  // of sinusoidal positions; null: others
  int64_t silent_pad = -1;              // a pad whose row is zeros; -1: none
  bool has_ignored = false;
  int64_t ignored = 0;
  double scale = 1.0;
  Dropout dropout;
  IdFault* fault = nullptr;
};

inline constexpr int kEmbeddingRows = 4;       // of the output, to one thread
inline constexpr int kEmbeddingThreads = 128;  // of a block
inline constexpr int kEmbeddingBlocks = 5;  // of a multiprocessor: 64 bytes a thread on their way
inline constexpr int kVectorBytes = 16;     // what a thread loads or stores at once

}  // namespace tegula
