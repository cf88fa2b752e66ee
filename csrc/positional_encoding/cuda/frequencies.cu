#include "frequencies.h"

namespace tegula {

extern "C" __global__ void store_frequencies(const __grid_constant__ FrequencyParams params) {
  for (int64_t i = threadIdx.x; i < params.count; i += blockDim.x) params.to[i] = params.values[i];
}

}  // namespace tegula
