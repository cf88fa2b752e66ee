#include "bias_simt.cuh"

namespace tegula {

TEGULA_BACKWARD_SIMT(double, float64)

}  // namespace tegula
