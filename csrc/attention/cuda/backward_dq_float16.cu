#include "dq_mma.cuh"

TEGULA_DQ_KERNELS(tegula::Half, float16)
