#include "forward_simt.cuh"

namespace tegula {

TEGULA_FORWARD_SIMT(double, float64_r2, 2)
TEGULA_FORWARD_SIMT(double, float64_r1, 1)

}  // namespace tegula
