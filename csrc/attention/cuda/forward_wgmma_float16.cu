#include "forward_wgmma.cuh"

TEGULA_WGMMA_KERNELS(tegula::Half, float16)
