#define TEGULA_ISA_AVX2
#define TEGULA_NAME "avx2"
#define TEGULA_TABLE kernels_avx2
#include "kernels.inl"
