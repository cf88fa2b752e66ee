#include <string>

#include "../../base/axes.h"
#include "../../cuda/launch.h"
#include "frequencies.h"
#include "positional_encoding_cuda.h"
#include "positional_encoding_params.h"

namespace tegula {
namespace {

double* frequencies_in(Workspace& memory, int64_t dim) {
  return memory.take<double>((dim + 1) / 2);
}

// Whether elements 2i and 2i + 1 of each row may be stored together.
bool stores_pairs(const PositionalEncodingParams& params) {
  const int64_t item = item_size(params.out.dtype);
  bool pairs = params.layout == PositionLayout::kInterleaved && params.dim % 2 == 0 &&
               params.out_step == 1 &&
               reinterpret_cast<uintptr_t>(params.out.data) % static_cast<uintptr_t>(2 * item) == 0;
  for (int axis = 0; axis < params.out.rank; ++axis) {
    pairs = pairs && params.out.stride[axis] % 2 == 0;
  }
  return pairs;
}

}  // namespace

size_t positional_encoding_workspace(const PositionalEncodingArgs& args) {
  Workspace memory(nullptr);
  frequencies_in(memory, args.out.size(0));
  return memory.bytes();
}

void positional_encoding(const PositionalEncodingArgs& args, const Place& place) {
  PositionalEncodingParams params;
  params.positions = collapsed(args.positions);
  params.out = args.out;
  --params.out.rank;
  params.out = collapsed(params.out);
  params.rows = args.positions.count();
  params.dim = args.out.size(0);
  params.out_step = params.dim == 1 ? 1 : args.out.step(0);
  params.layout = args.layout;
  params.pairs = stores_pairs(params);
  if (params.rows == 0 || params.dim == 0) return;

  Workspace memory(place.workspace);
  double* const frequencies = frequencies_in(memory, params.dim);
  const Sinusoid sinusoid = make_sinusoid(params.dim, args.base, args.layout, args.spacing);
  store_frequencies(sinusoid, frequencies, place);
  params.frequencies = frequencies;
  const int64_t groups = (params.rows + kEncodingRows - 1) / kEncodingRows;
  const int64_t items = groups * sinusoid.half();
  launch(place, std::string("positional_encoding_") + name_of(args.out.dtype),
         {(items + kEncodingThreads - 1) / kEncodingThreads, kEncodingThreads, 0}, params);
}

}  // namespace tegula
