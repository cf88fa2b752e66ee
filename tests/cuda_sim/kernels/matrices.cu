// Matrix instructions on fragments that the host lays out.
#include <cstdint>

#define KERNEL extern "C" __global__ void

namespace {

__device__ uint32_t address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace

// One warp each: a and b hold a lane's words one after the other, c and d four sums a lane.
#define MMA_16(name, types)                                                       \
  KERNEL name(const uint32_t* a, const uint32_t* b, const float* c, float* d) {   \
    const int lane = threadIdx.x;                                                 \
    float s[4];                                                                   \
    for (int i = 0; i < 4; ++i) s[i] = c[4 * lane + i];                           \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." types                   \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"     \
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])                 \
                 : "r"(a[4 * lane]), "r"(a[4 * lane + 1]), "r"(a[4 * lane + 2]),  \
                   "r"(a[4 * lane + 3]), "r"(b[2 * lane]), "r"(b[2 * lane + 1])); \
    for (int i = 0; i < 4; ++i) d[4 * lane + i] = s[i];                           \
  }

MMA_16(mma_m16n8k16_bf16, "bf16.bf16")
MMA_16(mma_m16n8k16_f16, "f16.f16")

KERNEL mma_m16n8k8_bf16(const uint32_t* a, const uint32_t* b, const float* c, float* d) {
  const int lane = threadIdx.x;
  float s[4];
  for (int i = 0; i < 4; ++i) s[i] = c[4 * lane + i];
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6},"
      " {%0,%1,%2,%3};"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
      : "r"(a[2 * lane]), "r"(a[2 * lane + 1]), "r"(b[lane]));
  for (int i = 0; i < 4; ++i) d[4 * lane + i] = s[i];
}

KERNEL mma_m16n8k8_tf32(const uint32_t* a, const uint32_t* b, const float* c, float* d) {
  const int lane = threadIdx.x;
  float s[4];
  for (int i = 0; i < 4; ++i) s[i] = c[4 * lane + i];
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
      " {%0,%1,%2,%3};"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
      : "r"(a[4 * lane]), "r"(a[4 * lane + 1]), "r"(a[4 * lane + 2]), "r"(a[4 * lane + 3]),
        "r"(b[2 * lane]), "r"(b[2 * lane + 1]));
  for (int i = 0; i < 4; ++i) d[4 * lane + i] = s[i];
}

// 32 rows of 16 bytes; lane i gives row 7 i + 3. The words of a lane lie one after the other.
KERNEL load_matrices(const uint4* in, uint32_t* out) {
  __shared__ uint4 rows[32];
  const int lane = threadIdx.x;
  rows[lane] = in[lane];
  __syncwarp();
  const uint32_t row = address(&rows[(7 * lane + 3) % 32]);
  uint32_t w[14];
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(w[0])
               : "r"(row)
               : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(w[1]), "=r"(w[2])
               : "r"(row)
               : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(w[3]), "=r"(w[4]), "=r"(w[5]), "=r"(w[6])
               : "r"(row)
               : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(w[7])
               : "r"(row)
               : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(w[8]), "=r"(w[9])
               : "r"(row)
               : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(w[10]), "=r"(w[11]), "=r"(w[12]), "=r"(w[13])
               : "r"(row)
               : "memory");
  for (int i = 0; i < 14; ++i) out[14 * lane + i] = w[i];
}

KERNEL transpose_matrix(const uint32_t* in, uint32_t* out) {
  uint32_t w;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(w) : "r"(in[threadIdx.x]));
  out[threadIdx.x] = w;
}
