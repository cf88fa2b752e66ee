// What the kernels of the embedding's gradient are given.
//
// Sorted places with the same id are a run. It is cut into pieces of kPlacesOfPiece, counted from
// its start, and the sums of pieces into stretches of kPiecesOfStretch. So the order of additions
// depends on the length of the run and on nothing else:
//
//   piece    its gradients, one after the other
//   stretch  its pieces' sums, one after the other
//   run      its stretches' sums, one after the other
//
// Windows are kPlacesOfPiece sorted places each, counted from the first. Of runs with several
// pieces, at most one begins in a window, and at most one further piece; so the sums of pieces
// have places of their own without being counted.
#pragma once

#include "../../base/philox.h"
#include "../../base/view.h"
#include "../embedding_backward_plan.h"

namespace tegula {

inline constexpr int kPlacesOfPiece = 64;
inline constexpr int kPiecesOfStretch = 8;
inline constexpr int kBackwardThreads = 256;  // of a block
inline constexpr int kBackwardBlocks = 2;     // of a multiprocessor
inline constexpr int kBackwardWarps = kBackwardThreads / 32;
inline constexpr int kPlacesOfBlock = 32;               // of embedding_sum
inline constexpr int kWindowsOfBlock = kBackwardWarps;  // of embedding_join
inline constexpr int kColumnsOfJoin = 128;

struct EmbeddingSumParams {
  const IdPlace* places = nullptr;  // sorted
  int64_t count = 0;
  int64_t num_rows = 0;                 // places with this id have no row
  const int64_t* run_starts = nullptr;  // of the run at each window's first place
  View grad;                            // its rows
  int64_t grad_step = 1;
  int64_t dim = 0;
  int64_t length = 1;  // of a row of ids: dropout's counter
  double factor = 1.0;
  Dropout dropout;
  void* partials = nullptr;  // (2 * windows, dim) in the type of the sums
  void* out = nullptr;
  int64_t out_stride = 0, out_step = 1;
  const int64_t* row_numbers = nullptr;  // at each run's start, its row of a sparse output
  int32_t lanes = 32;                    // threads of a row, a power of 2
  int32_t column_tiles = 1;              // blocks of a row
};

// For a sparse output: which row is each run's.
struct RunNumberParams {
  const IdPlace* places = nullptr;
  int64_t count = 0, num_rows = 0;
  int64_t slice = 0, slices = 0;  // as the sort's
  int64_t* counts = nullptr;      // (slices,) of runs that start there; then of those before
  int64_t* row_numbers = nullptr;
  int64_t* ids = nullptr;
  int64_t ids_stride = 1;
};

struct RunStartParams {
  const IdPlace* places = nullptr;
  int64_t count = 0, windows = 0;
  int64_t* run_starts = nullptr;
};

}  // namespace tegula
