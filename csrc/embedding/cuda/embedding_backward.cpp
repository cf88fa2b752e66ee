#include <algorithm>
#include <bit>
#include <string>

#include "../../base/axes.h"
#include "../../cuda/driver.h"
#include "../../cuda/launch.h"
#include "embedding_backward_params.h"
#include "embedding_cuda.h"
#include "places_by_id_cuda.h"
#include "table_rows.h"

namespace tegula {
namespace {

DType sum_type(DType type) { return type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

// What lies in the workspace.
struct BackwardMemory {
  SortMemory sort;
  int64_t* run_starts = nullptr;   // (windows,)
  char* partials = nullptr;        // (2 * windows, D) of the sums' type, where there are several
  int64_t* row_numbers = nullptr;  // (places,) of a sparse result
  int64_t* run_counts = nullptr;   // (slices,) and their sum
  size_t bytes = 0;
};

int64_t windows_of(int64_t count) { return (count + kPlacesOfPiece - 1) / kPlacesOfPiece; }

BackwardMemory memory_of(const EmbeddingBackwardArgs& args, void* workspace) {
  const int64_t count = args.ids.count(), windows = windows_of(count);
  Workspace memory(workspace);
  BackwardMemory parts;
  parts.sort = sort_memory(count, memory);
  parts.run_starts = memory.take<int64_t>(windows);
  if (windows > 1) {
    parts.partials =
        memory.take<char>(2 * windows * args.grad.size(0) * item_size(sum_type(args.grad.dtype)));
  }
  parts.row_numbers = memory.take<int64_t>(count);
  parts.run_counts = memory.take<int64_t>(sort_slices(count).slices + 1);
  parts.bytes = memory.bytes();
  return parts;
}

// Sorts, and finds where runs start.
const IdPlace* runs_of(const EmbeddingBackwardArgs& args, const BackwardMemory& memory,
                       const Place& place) {
  RunStartParams params;
  params.places = sort_places(args, memory.sort, place);
  params.count = args.ids.count();
  params.windows = windows_of(params.count);
  params.run_starts = memory.run_starts;
  launch(place, "embedding_run_starts", shape_for(params.windows, kBackwardThreads), params);
  return params.places;
}

// Threads of a row of so many chunks: a power of 2, few of them without work.
int lanes_for(int64_t chunks) {
  int64_t lanes = kBackwardThreads;
  const auto idle = [&] { return (chunks + lanes - 1) / lanes * lanes - chunks; };
  while (lanes > 32 && idle() > chunks / 8) lanes /= 2;
  while (lanes > 1 && lanes / 2 >= chunks) lanes /= 2;
  return static_cast<int>(lanes);
}

// row_numbers: of a sparse result; null for a dense one.
void sum_rows(const EmbeddingBackwardArgs& args, const BackwardMemory& memory,
              const IdPlace* places, const int64_t* row_numbers, const View& out,
              const Place& place) {
  EmbeddingSumParams params;
  params.places = places;
  params.count = args.ids.count();
  params.num_rows = args.num_rows;
  params.run_starts = memory.run_starts;
  params.grad = args.grad;
  --params.grad.rank;
  params.grad = collapsed(params.grad);
  params.dim = args.grad.size(0);
  params.grad_step = params.dim == 1 ? 1 : args.grad.step(0);
  params.length = args.ids.rank > 0 ? args.ids.size(0) : 1;
  params.factor = args.scale * args.dropout.scale;
  params.dropout = args.dropout;
  params.partials = memory.partials;
  const TableRows rows = table_rows(out);
  params.out = out.data;
  params.out_stride = rows.stride, params.out_step = rows.step;
  params.row_numbers = row_numbers;
  if (params.dim == 0) return;

  const std::string dtype = name_of(args.grad.dtype);
  const int64_t n = vector_elements(args.grad.dtype);
  const bool vectors = params.dim % n == 0 && is_aligned(rows, n) &&
                       rows_are_aligned(params.grad, params.grad_step, n);
  const int64_t chunks = vectors ? params.dim / n : params.dim;
  params.lanes = lanes_for(chunks);
  params.column_tiles = static_cast<int32_t>((chunks + params.lanes - 1) / params.lanes);
  const int64_t blocks = (params.count + kPlacesOfBlock - 1) / kPlacesOfBlock;
  launch(place, "embedding_sum_" + dtype + (vectors ? "_vectors" : "_elements"),
         {blocks * params.column_tiles, kBackwardThreads, 0}, params);
  if (params.count <= kPlacesOfPiece) return;  // nobody has two pieces
  params.column_tiles = static_cast<int32_t>((params.dim + kColumnsOfJoin - 1) / kColumnsOfJoin);
  const int64_t groups = (windows_of(params.count) + kWindowsOfBlock - 1) / kWindowsOfBlock;
  launch(place, "embedding_join_" + dtype, {groups * params.column_tiles, kBackwardThreads, 0},
         params);
}

RunNumberParams run_numbers(const EmbeddingBackwardArgs& args, const BackwardMemory& memory,
                            const IdPlace* places) {
  const SortParams slices = sort_slices(args.ids.count());
  RunNumberParams params;
  params.places = places;
  params.count = slices.count, params.num_rows = args.num_rows;
  params.slice = slices.slice, params.slices = slices.slices;
  params.counts = memory.run_counts;
  params.row_numbers = memory.row_numbers;
  return params;
}

// Whether no place has a gradient.
bool is_empty(const EmbeddingBackwardArgs& args) {
  return args.ids.count() == 0 || args.num_rows == 0 || args.dropout.p >= 1.0;
}

}  // namespace

size_t embedding_backward_workspace(const EmbeddingBackwardArgs& args) {
  check_embedding_backward(args);
  return memory_of(args, nullptr).bytes;
}

void embedding_backward(const EmbeddingBackwardArgs& args, const View& out, const Place& place) {
  check_embedding_backward(args);
  if (is_empty(args)) return check_embedding_backward_ids(args, place);
  const BackwardMemory memory = memory_of(args, place.workspace);
  sum_rows(args, memory, runs_of(args, memory, place), nullptr, out, place);
}

int64_t embedding_backward_sparse_rows(const EmbeddingBackwardArgs& args, const Place& place) {
  check_embedding_backward(args);
  if (is_empty(args)) {
    check_embedding_backward_ids(args, place);
    return 0;
  }
  const BackwardMemory memory = memory_of(args, place.workspace);
  const RunNumberParams params = run_numbers(args, memory, runs_of(args, memory, place));
  launch(place, "embedding_count_runs", {params.slices, kBackwardThreads, 0}, params);
  SortParams sums;
  sums.rows = 1, sums.slices = params.slices;
  sums.counts = params.counts, sums.totals = params.counts + params.slices;
  launch(place, "sort_scan", {1, kSortThreads, 0}, sums);
  int64_t rows = 0;
  read_back(place, &rows, sums.totals, sizeof rows);
  return rows;
}

void embedding_backward_sparse(const EmbeddingBackwardArgs& args, const View& ids, const View& rows,
                               const Place& place) {
  if (is_empty(args)) return;
  const BackwardMemory memory = memory_of(args, place.workspace);
  const IdPlace* places = sorted_places(args, memory.sort);
  RunNumberParams params = run_numbers(args, memory, places);
  params.ids = ids.at<int64_t>(0);
  params.ids_stride = ids.stride[0];
  launch(place, "embedding_number_runs", {params.slices, kBackwardThreads, 0}, params);
  sum_rows(args, memory, places, memory.row_numbers, rows, place);
}

}  // namespace tegula
