// Instructions that CUDA C++ has no words for: every line of inline PTX of sm_80 and later.
//
// What reads or writes memory, or orders such accesses, is volatile and clobbers memory, so that
// the compiler moves nothing past it. Shared memory is addressed by 32-bit numbers.
#pragma once

#include <cstdint>

#include "device.cuh"

namespace tegula {

TEGULA_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// x, of which the compiler knows nothing: what follows from it is computed where it is needed, and
// not kept in registers from before a loop.
TEGULA_DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

TEGULA_DEVICE void store_shared(uint32_t to, uint16_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(value) : "memory");
}
TEGULA_DEVICE uint16_t load_shared(uint32_t from) {
  uint16_t value;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(from) : "memory");
  return value;
}

TEGULA_DEVICE void store_shared_32(uint32_t to, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
TEGULA_DEVICE uint32_t load_shared_32(uint32_t from) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}
// 16 bytes; the address is a multiple of 16.
TEGULA_DEVICE void store_shared_128(uint32_t to, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}
TEGULA_DEVICE uint4 load_shared_128(uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

// --- barriers of some warps of a block -------------------------------------------------------
//
// Barrier `id`, 1 to 15, is complete when `threads` threads have arrived or wait; these see what
// those wrote before.
TEGULA_DEVICE void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TEGULA_DEVICE void barrier_wait(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- copies from global to shared memory that nobody waits for ------------------------------

// 16 bytes, or 16 zeros without reading `from`. Both addresses are multiples of 16.
TEGULA_DEVICE void copy_async_16(uint32_t to, const void* from, bool there) {
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// The thread's copies since the last call are one group.
TEGULA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most kPending of the thread's newest groups are on their way. What other threads copied
// needs a barrier besides.
template <int kPending>
TEGULA_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// --- fragments of 16-bit matrices -----------------------------------------------------------
//
// With g = lane / 4 and t = lane % 4, a lane's registers of a product C (16 x 8) += A (16 x 16)
// B (16 x 8) hold, two elements a register:
//   A  rows g, g + 8 of columns 2t, 2t + 1; then the same rows of columns 8 + 2t, 9 + 2t
//   B  rows 2t, 2t + 1 of column g; then rows 8 + 2t, 9 + 2t
//   C  row g, columns 2t, 2t + 1; then row g + 8 (one element a register)

// Four 8 x 8 matrices; lane 8 i + r gives the address of row r of matrix i, 16 bytes. The lane gets
// row g, columns 2t and 2t + 1 of each.
TEGULA_DEVICE void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// The same of the transposed matrices.
TEGULA_DEVICE void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

TEGULA_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                Half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
TEGULA_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                BFloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers rounded to T, `low` in the low half.
TEGULA_DEVICE uint32_t pack(float low, float high, Half) {
  uint32_t packed;
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
TEGULA_DEVICE uint32_t pack(float low, float high, BFloat16) {
  uint32_t packed;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// 2^x within 2 units in the last place; 0 for -inf.
TEGULA_DEVICE float exp2_fast(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tegula
