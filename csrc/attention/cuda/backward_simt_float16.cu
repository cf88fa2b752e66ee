#include "bias_simt.cuh"

namespace tegula {

TEGULA_BACKWARD_SIMT(Half, float16)

}  // namespace tegula
