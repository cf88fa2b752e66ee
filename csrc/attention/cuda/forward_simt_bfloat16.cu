#include "forward_simt.cuh"

namespace tegula {

TEGULA_FORWARD_SIMT(BFloat16, bfloat16_r4, 4)
TEGULA_FORWARD_SIMT(BFloat16, bfloat16_r1, 1)

}  // namespace tegula
