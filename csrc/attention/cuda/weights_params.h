// What the kernels of weights.cu are given.
#pragma once

#include "forward_simt_params.h"

namespace tegula {

struct WeightsParams {
  ForwardSimtParams forward;
  RowSteps weights;
};

}  // namespace tegula
