// The gradient of an embedding with respect to its table:
//
//   row v  =  scale * sum over the places with ids[place] == v of dropout(grad[place, :])
//
//   grad  (..., L, D)  float64, float32, float16 or bfloat16, any strides
//   ids   (..., L)     any integer type, any strides
//   rows  (V, D)       dense: added to what they hold, and rounded once
//         (N, D)       sparse: only rows with a place, in ascending order of their ids
//
// The pad and the ignored id have no places. Dropout is replayed: element (lead, l, column)
// of grad is dropped where the forward pass dropped it (base/philox.h). Given positions
// or segments as `ids`, the same is the gradient of their tables.
//
// Sums are float32 (float64 for float64). Places are sorted by id first, so that each row
// has one owner, who adds its places in order. A row with many places is cut into pieces of
// kEmbeddingPiece places; pieces are summed by themselves, then added in order. So bits
// depend neither on the number of threads nor on the other rows.
//
// Cost: the gradient is read once, rows with a place are read and written once, other rows
// are not looked at. A place's gradient is asked for a few places ahead. Memory: about
// 32 bytes a place, and a row of sums for each piece of a row that has more than one.
#pragma once

#include <vector>

#include "../base/philox.h"
#include "../base/view.h"
#include "places_by_id.h"

namespace tegula {

struct EmbeddingBackwardArgs {
  View grad, ids;
  int64_t num_rows = 0;
  int64_t padding_idx = -1;  // -1: none
  bool has_ignored = false;
  int64_t ignored = 0;
  double scale = 1.0;
  Dropout dropout;
  int threads = 0;  // 0: the setting
};

inline constexpr int64_t kEmbeddingPiece = 512;

// Places [begin, begin of the next piece) of one row.
struct EmbeddingPiece {
  int64_t begin;
  int64_t row;      // counts the rows that have places
  int64_t partial;  // where the sum waits for the row's other pieces; -1: the only piece
};

// A row of several pieces.
struct EmbeddingLongRow {
  int64_t first_piece, last_piece;
};

// Which gradients belong to which row.
struct EmbeddingGroups {
  Places places;
  std::vector<EmbeddingPiece> pieces;  // and one more, behind the last place
  std::vector<EmbeddingLongRow> long_rows;
  int64_t rows = 0;  // with a place
  int64_t partials = 0;
};

// ValueError, TypeError or IndexError before anything is written.
EmbeddingGroups group_places(const EmbeddingBackwardArgs& args);

// out: (V, D), in which the sums are added to rows that have a place. `zeros` promises that
// it holds nothing but zeros.
void embedding_backward(const EmbeddingBackwardArgs& args, const EmbeddingGroups& groups,
                        const View& out, bool zeros);

// ids: (N,) int64, rows: (N, D) with N = groups.rows.
void embedding_backward_sparse(const EmbeddingBackwardArgs& args, const EmbeddingGroups& groups,
                               const View& ids, const View& rows);

// What all pieces of a call share. C is the type of the sums.
struct EmbeddingBackwardPlan {
  View grad;  // its rows, as few axes as possible: one entry a place
  int64_t grad_step = 1;
  int64_t dim = 0;
  int64_t length = 1;  // of a row of ids: dropout's counter
  double factor = 1.0;
  Dropout dropout;
  const Place* places = nullptr;
  int64_t place_count = 0;
  const EmbeddingPiece* pieces = nullptr;
  void* partials = nullptr;  // C: embedding_padded(dim) each
  void* out = nullptr;
  int64_t out_stride = 0, out_step = 1;
  bool by_id = false;  // the row of `out` is the id, not the piece's row
  bool zeros = false;  // `out` counts as zeros and is not read
};

struct EmbeddingBackwardKernels {
  // scratch: kEmbeddingBackwardScratch arrays of embedding_padded(dim) elements of 8 bytes
  void (*sum_pieces)(const EmbeddingBackwardPlan& plan, int64_t first, int64_t last, void* scratch);
  // The sum of a long row's pieces.
  void (*join_pieces)(const EmbeddingBackwardPlan& plan, int64_t first, int64_t last,
                      void* scratch);
};

inline constexpr int kEmbeddingBackwardScratch = 6;

}  // namespace tegula
