// What is looked at before ids are, and needs no kernel: of the CPU's operations and of the GPU's.
#include "../base/axes.h"
#include "../base/check.h"
#include "embedding.h"
#include "embedding_backward.h"

namespace tegula {
namespace {

void check_table(const View& table, int64_t dim, const char* name, const char* shape) {
  if (table.rank != 2) {
    throw ValueError(message(name, " must have shape ", shape, ", got ", shape_text(table)));
  }
  if (dim >= 0 && table.shape[1] != dim) {
    throw ValueError(message(name, " has rows of ", table.shape[1],
                             " elements, but the rows of weight have ", dim));
  }
  if (!is_float(table.dtype)) {
    throw TypeError(message(name, " must have a float dtype, got ", name_of(table.dtype)));
  }
}

void check_integers(const View& view, const char* name) {
  if (!is_integer(view.dtype)) {
    throw TypeError(message(name, " must have an integer dtype, got ", name_of(view.dtype)));
  }
}

}  // namespace

void check_embedding(const EmbeddingArgs& args) {
  check_integers(args.ids, "ids");
  check_table(args.weight, -1, "weight", "(V, D)");
  const int64_t dim = args.weight.shape[1];
  const int64_t rows = args.weight.shape[0];
  if (args.padding_idx < -1 || args.padding_idx >= rows) {
    throw ValueError(message("padding_idx ", args.padding_idx, " is outside [0, ", rows, ")"));
  }
  if (args.position_table) {
    check_table(args.position_table, dim, "position_table", "(P, D)");
    const int64_t length = args.ids.rank > 0 ? args.ids.size(0) : 1;
    if (!args.positions && length > args.position_table.shape[0]) {
      throw ValueError(message("ids have length ", length, " along their last axis, but ",
                               "position_table has only ", args.position_table.shape[0], " rows"));
    }
    if (args.positions) check_integers(args.positions, "positions with a position_table");
  }
  if (args.segment_table) {
    check_table(args.segment_table, dim, "segment_table", "(S, D)");
    check_integers(args.segments, "segments");
  }
  bool fits = args.out.rank == args.ids.rank + 1 && args.out.dtype == args.weight.dtype &&
              args.out.size(0) == dim;
  for (int axis = 0; fits && axis < args.ids.rank; ++axis) {
    fits = args.out.shape[axis] == args.ids.shape[axis];
  }
  if (!fits) throw ValueError("out must have the shape of ids, then D, and the dtype of weight");
}

EmbeddingRowViews embedding_row_views(const EmbeddingArgs& args) {
  EmbeddingRowViews views;
  const int rank = args.ids.rank;
  const int64_t* shape = args.ids.shape;
  if (rank > 0) {
    views.length = args.ids.size(0);
    for (int axis = 0; axis < rank - 1; ++axis) views.batch *= shape[axis];
  }
  views.ids = collapsed(args.ids);
  views.out = args.out;
  --views.out.rank;
  views.out = collapsed(views.out);
  if (args.positions) {
    views.positions = collapsed(broadcast_to(args.positions, rank, shape, "positions"));
  }
  if (args.segments) {
    views.segments = collapsed(broadcast_to(args.segments, rank, shape, "segments"));
  }
  return views;
}

void check_embedding_backward(const EmbeddingBackwardArgs& args) {
  if (!is_integer(args.ids.dtype)) {
    throw TypeError(message("ids must have an integer dtype, got ", name_of(args.ids.dtype)));
  }
  if (!is_float(args.grad.dtype)) {
    throw TypeError(message("grad must have a float dtype, got ", name_of(args.grad.dtype)));
  }
  bool fits = args.grad.rank == args.ids.rank + 1;
  for (int axis = 0; fits && axis < args.ids.rank; ++axis) {
    fits = args.grad.shape[axis] == args.ids.shape[axis];
  }
  if (!fits) {
    throw ValueError(message("grad must have the shape of ids, ", shape_text(args.ids),
                             ", then D, got ", shape_text(args.grad)));
  }
  if (args.num_rows < 0) {
    throw ValueError(message("num_rows must not be negative, got ", args.num_rows));
  }
  if (args.padding_idx < -1 || args.padding_idx >= args.num_rows) {
    throw ValueError(
        message("padding_idx ", args.padding_idx, " is outside [0, ", args.num_rows, ")"));
  }
}

}  // namespace tegula
