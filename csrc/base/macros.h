// The attributes every header shares.
#pragma once

// Functions used inside instruction-set objects must never be emitted as
// shared symbols, or the linker could keep an AVX copy for everyone.
#define TEGULA_INLINE inline __attribute__((always_inline))
#define TEGULA_NOINLINE __attribute__((noinline))
#define TEGULA_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TEGULA_UNROLL(n) TEGULA_PRAGMA(clang loop unroll_count(n))
#else
#define TEGULA_UNROLL(n) TEGULA_PRAGMA(GCC unroll n)
#endif
