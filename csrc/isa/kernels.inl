// Every operation's SIMD body, compiled once per instruction set. The including file
// defines the set (TEGULA_ISA_...) and TEGULA_TABLE, the one symbol its object exports.
#include "table.h"

// The order is the order of dependence.
#include "../simd/vec.h"
//
#include "../simd/math.inl"
//
#include "../simd/gemm.inl"
//
#include "../attention/weights_kernel.inl"
//
#include "../mask/mask_kernel.inl"

namespace tegula {

extern const KernelTable TEGULA_TABLE;
const KernelTable TEGULA_TABLE = {
    TEGULA_NAME,
    {attention_kernels<double>(), attention_kernels<float>(), attention_kernels<Half>(),
     attention_kernels<BFloat16>()},
    mask_kernels(),
};

}  // namespace tegula
