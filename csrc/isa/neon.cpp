#define TEGULA_ISA_NEON
#define TEGULA_NAME "neon"
#define TEGULA_TABLE kernels_neon
#include "kernels.inl"
