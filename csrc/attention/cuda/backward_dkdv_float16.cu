#include "dkdv_mma.cuh"

TEGULA_DKDV_KERNELS(tegula::Half, float16)
