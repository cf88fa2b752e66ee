#include "../../base/axes.h"
#include "../../cuda/launch.h"
#include "dropout_cuda.h"
#include "dropout_params.h"

namespace tegula {

void dropout_mask(const Dropout& dropout, const View& out, const Place& place) {
  DropoutMaskParams params;
  params.dropout = dropout;
  params.lines = out;
  params.columns = 1;
  if (out.rank > 0) {
    params.columns = out.size(0);
    params.step = params.columns == 1 ? 1 : out.step(0);
    --params.lines.rank;
  }
  if (out.rank > 1) params.rows = out.size(1);
  params.count = params.lines.count();
  params.lines = collapsed(params.lines);
  const int64_t quads = params.count * ((params.columns + 3) / 4);
  launch(place, "dropout_mask",
         {(quads + kDropoutThreads - 1) / kDropoutThreads, kDropoutThreads, 0}, params);
}

}  // namespace tegula
