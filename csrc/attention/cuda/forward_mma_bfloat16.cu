#include "forward_mma.cuh"

TEGULA_FORWARD_KERNELS(tegula::BFloat16, bfloat16)
