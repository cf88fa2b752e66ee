// What the kernels of weights.cuh are given.
#pragma once

#include "forward_simt_params.h"

namespace tegula {

struct WeightsParams {
  ForwardSimtParams forward;  // a block of threads for each chunk of keys
  RowSteps weights;
};

}  // namespace tegula
