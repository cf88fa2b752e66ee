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

#include "../base/arena.h"
#include "../base/philox.h"
#include "../base/view.h"
#include "embedding_backward_plan.h"
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

// Which gradients belong to which row. The arrays lie in `memory`.
struct EmbeddingGroups {
  TakenArena memory;
  SortedPlaces places;
  EmbeddingPiece* pieces = nullptr;  // and one more, behind the last place
  int64_t piece_count = 0;
  int64_t rows = 0;      // with a place
  int64_t partials = 0;  // pieces of rows that have several
};

// ValueError or TypeError unless shapes, types and options fit.
void check_embedding_backward(const EmbeddingBackwardArgs& args);

// IndexError, before anything is written, unless every id lies inside the table.
EmbeddingGroups group_places(const EmbeddingBackwardArgs& args);

// out: (V, D), in which the sums are added to rows that have a place. `zeros` promises that
// it holds nothing but zeros.
void embedding_backward(const EmbeddingBackwardArgs& args, const EmbeddingGroups& groups,
                        const View& out, bool zeros);

// ids: (N,) int64, rows: (N, D) with N = groups.rows.
void embedding_backward_sparse(const EmbeddingBackwardArgs& args, const EmbeddingGroups& groups,
                               const View& ids, const View& rows);

}  // namespace tegula
