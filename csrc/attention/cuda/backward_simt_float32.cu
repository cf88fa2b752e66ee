#include "bias_simt.cuh"

namespace tegula {

TEGULA_BACKWARD_SIMT(float, float32)

}  // namespace tegula
