#include "forward_simt.cuh"

namespace tegula {

TEGULA_FORWARD_SIMT(Half, float16_r4, 4)
TEGULA_FORWARD_SIMT(Half, float16_r1, 1)

}  // namespace tegula
