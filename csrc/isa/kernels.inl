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
#include "../attention/bias_gradient.inl"
//
#include "../mask/mask_kernel.inl"
//
#include "../positional_encoding/positional_encoding_kernel.inl"
//
#include "../embedding/embedding_kernel.inl"
//
#include "../embedding/embedding_backward_kernel.inl"

namespace tegula {

extern const KernelTable TEGULA_TABLE;
const KernelTable TEGULA_TABLE = {
    TEGULA_NAME,
    {attention_kernels<double>(), attention_kernels<float>(), attention_kernels<Half>(),
     attention_kernels<BFloat16>()},
    {attention_gradient_kernels<double>(), attention_gradient_kernels<float>(),
     attention_gradient_kernels<Half>(), attention_gradient_kernels<BFloat16>()},
    mask_kernels(),
    {positional_encoding_kernels<double>(), positional_encoding_kernels<float>(),
     positional_encoding_kernels<Half>(), positional_encoding_kernels<BFloat16>()},
    {embedding_kernels<double>(), embedding_kernels<float>(), embedding_kernels<Half>(),
     embedding_kernels<BFloat16>()},
    {embedding_backward_kernels<double>(), embedding_backward_kernels<float>(),
     embedding_backward_kernels<Half>(), embedding_backward_kernels<BFloat16>()},
};

}  // namespace tegula
