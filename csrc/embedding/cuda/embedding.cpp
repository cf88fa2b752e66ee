#include <cstdint>
#include <string>

#include "../../base/axes.h"
#include "../../cuda/launch.h"
#include "../../positional_encoding/cuda/frequencies.h"
#include "embedding_cuda.h"
#include "embedding_params.h"
#include "table_rows.h"

namespace tegula {
namespace {

// Where the entries of `argument`, seen in the shape of ids, lie in its own C order.
View places_of(const View& argument, const EmbeddingArgs& args, const char* name) {
  View places = argument;
  int64_t stride = 1;
  for (int axis = places.rank - 1; axis >= 0; --axis) {
    places.stride[axis] = stride;
    stride *= places.shape[axis];
  }
  return collapsed(broadcast_to(places, args.ids.rank, args.ids.shape, name));
}

EmbeddingParams params_of(const EmbeddingArgs& args, const Place& place) {
  const EmbeddingRowViews views = embedding_row_views(args);
  EmbeddingParams params;
  params.ids = views.ids;
  params.out = views.out;
  params.dim = args.weight.shape[1];
  params.out_step = params.dim == 1 ? 1 : args.out.step(0);
  params.weight = table_rows(args.weight);
  params.length = views.length, params.batch = views.batch;
  if (args.positions) {
    params.positions = views.positions;
    params.position_places = places_of(args.positions, args, "positions");
  }
  if (args.position_table) params.position_table = table_rows(args.position_table);
  if (args.segment_table) {
    params.segments = views.segments;
    params.segment_places = places_of(args.segments, args, "segments");
    params.segment_table = table_rows(args.segment_table);
  }
  // Neighbours in a sequence share nothing; the same place of several sequences shares its
  // position.
  params.across = (args.sinusoidal || args.position_table) && views.batch > 1;
  params.silent_pad = args.zero_pads ? args.padding_idx : -1;
  params.has_ignored = args.has_ignored;
  params.ignored = args.ignored;
  params.scale = args.scale;
  params.dropout = args.dropout;
  params.fault = place.fault;
  return params;
}

void launch_check(const EmbeddingParams& params, const Place& place) {
  launch(place, "embedding_check", shape_for(params.batch * params.length, kEmbeddingThreads),
         params);
}

struct EmbeddingMemory {
  double* frequencies = nullptr;
  size_t bytes = 0;
};

EmbeddingMemory memory_of(const EmbeddingArgs& args, void* workspace) {
  Workspace memory(workspace);
  EmbeddingMemory found;
  if (args.sinusoidal) found.frequencies = memory.take<double>((args.weight.shape[1] + 1) / 2);
  found.bytes = memory.bytes();
  return found;
}

}  // namespace

size_t embedding_workspace(const EmbeddingArgs& args) {
  check_embedding(args);
  return memory_of(args, nullptr).bytes;
}

void check_embedding_ids(const EmbeddingArgs& args, const Place& place) {
  check_embedding(args);
  launch_check(params_of(args, place), place);
}

void check_embedding_backward_ids(const EmbeddingBackwardArgs& args, const Place& place) {
  check_embedding_backward(args);
  EmbeddingParams params;
  params.ids = collapsed(args.ids);
  params.weight.rows = args.num_rows;
  params.length = args.ids.count();
  params.has_ignored = args.has_ignored, params.ignored = args.ignored;
  params.fault = place.fault;
  launch_check(params, place);
}

void embedding(const EmbeddingArgs& args, const Place& place) {
  check_embedding(args);
  EmbeddingParams params = params_of(args, place);
  const int64_t count = params.batch * params.length;
  if (count == 0) return;
  if (params.dim == 0) return launch_check(params, place);
  if (args.sinusoidal) {
    double* frequencies = memory_of(args, place.workspace).frequencies;
    store_frequencies(
        make_sinusoid(params.dim, 10000.0, PositionLayout::kInterleaved, PositionSpacing::kPaper),
        frequencies, place);
    params.frequencies = frequencies;
  }
  const int64_t n = vector_elements(args.weight.dtype);
  const bool vectors = params.dim % n == 0 && is_aligned(params.weight, n) &&
                       rows_are_aligned(params.out, params.out_step, n);
  if (vectors) {
    params.position_table.vectors = is_aligned(params.position_table, n);
    params.segment_table.vectors = is_aligned(params.segment_table, n);
  }
  const int64_t chunks = vectors ? params.dim / n : params.dim;
  const auto groups_of = [](int64_t rows) { return (rows + kEmbeddingRows - 1) / kEmbeddingRows; };
  const int64_t groups = params.across ? groups_of(params.batch) * params.length : groups_of(count);
  launch(
      place,
      std::string("embedding_") + name_of(args.weight.dtype) + (vectors ? "_vectors" : "_elements"),
      shape_for(groups * chunks, kEmbeddingThreads), params);
}

}  // namespace tegula
