#include "dq_mma.cuh"

TEGULA_DQ_KERNELS(tegula::BFloat16, bfloat16)
