#include "forward_mma.cuh"

TEGULA_FORWARD_KERNELS(tegula::Half, float16)
