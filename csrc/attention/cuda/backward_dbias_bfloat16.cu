#include "dbias_mma.cuh"

TEGULA_DBIAS_KERNELS(tegula::BFloat16, bfloat16)
