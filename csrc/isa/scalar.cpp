#define TEGULA_ISA_SCALAR
#define TEGULA_NAME "scalar"
#define TEGULA_TABLE kernels_scalar
#include "kernels.inl"
