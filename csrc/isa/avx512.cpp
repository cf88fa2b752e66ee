#define TEGULA_ISA_AVX512
#define TEGULA_NAME "avx512"
#define TEGULA_TABLE kernels_avx512
#include "kernels.inl"
