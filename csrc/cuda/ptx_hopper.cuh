// Instructions of sm_90a that CUDA C++ has no words for: barriers that count arrivals and bytes,
// copies of boxes of an array, products of 64 rows by four warps at a time, and registers that
// warps hand to each other. As in ptx.cuh, what touches memory is volatile.
#pragma once

#include "ptx.cuh"
#include "tensor_map.h"

namespace tegula {

// --- barriers in shared memory ----------------------------------------------------------------
//
// A barrier's phase, counted from 0, is complete when `count` threads have arrived and the bytes
// they announced were copied.

TEGULA_DEVICE void init_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
TEGULA_DEVICE void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
TEGULA_DEVICE void arrive_with_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Until phase `phase` is complete; only its last bit counts.
TEGULA_DEVICE void wait_for_phase(uint32_t barrier, int phase) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(phase & 1)
        : "memory");
  } while (!done);
}

// What this thread wrote to shared memory is there for copies of boxes and products as well, once
// they know that this has happened. Barriers that were initialised, likewise.
TEGULA_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Whether some thread of `threads` that wait at barrier `id` says so.
TEGULA_DEVICE bool any_of(int id, int threads, bool here) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred here, any;\n"
      "setp.ne.u32 here, %3, 0;\n"
      "barrier.cta.red.or.pred any, %1, %2, here;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(here))
      : "memory");
  return any != 0;
}

// --- copies of boxes
// ------------------------------------------------------------------------------

// The box at these places of the axes, from the last axis to the first. Its bytes count at the
// barrier.
TEGULA_DEVICE void copy_box(uint32_t to, const TensorMap& map, int x, int y, int z, int w,
                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// --- registers ----------------------------------------------------------------------------------

template <int kRegisters>
TEGULA_DEVICE void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
TEGULA_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- products by four warps -------------------------------------------------------------------
//
// C (64 x N) += A (64 x 16) B (16 x N): warp w has rows 16 w to 16 w + 15, as fragments of N / 8
// (ptx.cuh) of them and 8 columns each. A is a fragment of the same rows, or lies in shared memory
// like B. Products run on by themselves: between `begin_products` and `wait_for_products`, nothing
// touches their registers.

TEGULA_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TEGULA_DEVICE void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending groups are unfinished.
template <int kPending>
TEGULA_DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Where such a product finds a matrix: rows of 128 bytes as copy_box leaves them, at a multiple of
// 1024. `block` is the distance between blocks of 64 columns, for matrices that are read across
// their rows.
TEGULA_DEVICE uint64_t matrix_at(uint32_t place, int block) {
  constexpr uint64_t kEightRows = 1024, kPermuted128 = 1;
  return static_cast<uint64_t>((place & 0x3FFFF) >> 4) | static_cast<uint64_t>(block >> 4) << 16 |
         (kEightRows >> 4) << 32 | kPermuted128 << 62;
}

// Operands of a product: four registers for each 8 columns.
#define TEGULA_SUMS_4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define TEGULA_SUMS_16(c, n) \
  TEGULA_SUMS_4(c, n), TEGULA_SUMS_4(c, n + 1), TEGULA_SUMS_4(c, n + 2), TEGULA_SUMS_4(c, n + 3)
#define TEGULA_SUMS_32(c) TEGULA_SUMS_16(c, 0), TEGULA_SUMS_16(c, 4)
#define TEGULA_SUMS_64(c) TEGULA_SUMS_32(c), TEGULA_SUMS_16(c, 8), TEGULA_SUMS_16(c, 12)
#define TEGULA_NAMES_32                                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TEGULA_NAMES_64                                                                          \
  TEGULA_NAMES_32                                                                                \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// C = A B (`first`) or C += A B, with B's rows along 16 keys' numbers: both matrices have rows of
// the numbers that are summed over.
#define TEGULA_MULTIPLY_ROWS(type, name)                                                          \
  TEGULA_DEVICE void multiply_rows(float (&c)[16][4], uint64_t a, uint64_t b, bool first, type) { \
    asm volatile(                                                                                 \
        "{\n"                                                                                     \
        ".reg .pred add;\n"                                                                       \
        "setp.ne.u32 add, %66, 0;\n"                                                              \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " {" TEGULA_NAMES_64         \
        "}, %64, %65, add, 1, 1, 0, 0;\n"                                                         \
        "}"                                                                                       \
        : TEGULA_SUMS_64(c)                                                                       \
        : "l"(a), "l"(b), "r"(static_cast<uint32_t>(!first)));                                    \
  }
TEGULA_MULTIPLY_ROWS(Half, "f16")
TEGULA_MULTIPLY_ROWS(BFloat16, "bf16")
#undef TEGULA_MULTIPLY_ROWS

// C += A B, with A in registers and B read across its rows: 16 rows of N columns.
#define TEGULA_MULTIPLY_WEIGHTS(type, name, columns, count, names, sums, a0, a1, a2, a3, b0)      \
  TEGULA_DEVICE void multiply_weights(float (&c)[count][4], const uint32_t (&a)[4], uint64_t b,   \
                                      type) {                                                     \
    asm volatile(                                                                                 \
        "{\n"                                                                                     \
        ".reg .pred add;\n"                                                                       \
        "setp.eq.u32 add, 0, 0;\n"                                                                \
        "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." name "." name " {" names "}, {" a0 \
        ", " a1 ", " a2 ", " a3 "}, " b0                                                          \
        ", add, 1, 1, 1;\n"                                                                       \
        "}"                                                                                       \
        : sums(c)                                                                                 \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                    \
  }
TEGULA_MULTIPLY_WEIGHTS(Half, "f16", "64", 8, TEGULA_NAMES_32, TEGULA_SUMS_32, "%32", "%33", "%34",
                        "%35", "%36")
TEGULA_MULTIPLY_WEIGHTS(BFloat16, "bf16", "64", 8, TEGULA_NAMES_32, TEGULA_SUMS_32, "%32", "%33",
                        "%34", "%35", "%36")
TEGULA_MULTIPLY_WEIGHTS(Half, "f16", "128", 16, TEGULA_NAMES_64, TEGULA_SUMS_64, "%64", "%65",
                        "%66", "%67", "%68")
TEGULA_MULTIPLY_WEIGHTS(BFloat16, "bf16", "128", 16, TEGULA_NAMES_64, TEGULA_SUMS_64, "%64", "%65",
                        "%66", "%67", "%68")
#undef TEGULA_MULTIPLY_WEIGHTS

// Registers of products have their values here, and no instruction that the compiler moves sets
// them between products that run on.
template <int kColumns>
TEGULA_DEVICE void hold(float (&c)[kColumns][4]) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
  }
}
template <int kN>
TEGULA_DEVICE void hold(uint32_t (&a)[kN][2]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) asm volatile("" : "+r"(a[n][h])::"memory");
  }
}

}  // namespace tegula
