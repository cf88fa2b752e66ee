// What the kernels of embedding_backward.h are given.
#pragma once

#include "../base/philox.h"
#include "../base/view.h"

namespace tegula {

struct IdPlace {
  int64_t id;
  int64_t place;  // number of the entry in C order
};

inline constexpr int64_t kEmbeddingPiece = 512;

// Places [begin, begin of the next piece) of one row.
struct EmbeddingPiece {
  int64_t begin;
  int64_t row;      // counts the rows that have places
  int64_t partial;  // where the sum waits for the row's other pieces; -1: the only piece
};

// What all pieces of a call share. C is the type of the sums.
struct EmbeddingBackwardPlan {
  View grad;  // its rows, as few axes as possible: one entry a place
  int64_t grad_step = 1;
  int64_t dim = 0;
  int64_t length = 1;  // of a row of ids: dropout's counter
  double factor = 1.0;
  Dropout dropout;
  const IdPlace* places = nullptr;
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
