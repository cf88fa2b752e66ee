#include "forward_wgmma.cuh"

TEGULA_WGMMA_KERNELS(tegula::BFloat16, bfloat16)
