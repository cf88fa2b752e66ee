#include "forward_simt.cuh"

namespace tegula {

TEGULA_FORWARD_SIMT(float, float32_r4, 4)
TEGULA_FORWARD_SIMT(float, float32_r1, 1)

}  // namespace tegula
