#include "bias_simt.cuh"

namespace tegula {

TEGULA_BACKWARD_SIMT(BFloat16, bfloat16)

}  // namespace tegula
