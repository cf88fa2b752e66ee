#include "dkdv_mma.cuh"

TEGULA_DKDV_KERNELS(tegula::BFloat16, bfloat16)
