#define TEGULA_ISA_AVX512
#define TEGULA_ISA_BF16
#define TEGULA_NAME "avx512bf16"
#define TEGULA_TABLE kernels_avx512bf16
#include "kernels.inl"
