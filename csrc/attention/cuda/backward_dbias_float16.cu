#include "dbias_mma.cuh"

TEGULA_DBIAS_KERNELS(tegula::Half, float16)
