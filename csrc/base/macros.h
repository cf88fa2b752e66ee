// The attributes every header shares.
#pragma once

// Functions used inside instruction-set objects must never be emitted as
// shared symbols, or the linker could keep an AVX copy for everyone.
#define TEGULA_INLINE inline __attribute__((always_inline))
#define TEGULA_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define TEGULA_UNROLL(n) _Pragma("clang loop unroll(full)")
#else
#define TEGULA_PRAGMA(text) _Pragma(#text)
#define TEGULA_UNROLL(n) TEGULA_PRAGMA(GCC unroll n)
#endif
