// The attributes every header shares.
#pragma once

// Functions used inside instruction-set objects must never be emitted as
// shared symbols, or the linker could keep an AVX copy for everyone. CUDA kernels call them too.
#if defined(__CUDACC__)
#define TEGULA_INLINE __host__ __device__ inline __attribute__((always_inline))
#else
#define TEGULA_INLINE inline __attribute__((always_inline))
#endif
#define TEGULA_NOINLINE __attribute__((noinline))
#define TEGULA_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TEGULA_UNROLL(n) TEGULA_PRAGMA(clang loop unroll_count(n))
#else
#define TEGULA_UNROLL(n) TEGULA_PRAGMA(GCC unroll n)
#endif
