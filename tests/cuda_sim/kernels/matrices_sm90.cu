// wgmma on tiles that the host lays out, and matrices stored to shared memory.
#include <cstdint>

#define KERNEL extern "C" __global__ void __launch_bounds__(128)

namespace {

struct Params {
  const uint4 *a, *b;                         // 8192 bytes each, as they lie in shared memory
  float* d;                                   // [thread][32]
  uint64_t descriptor_a[4], descriptor_b[4];  // of steps of 16; addresses from the tile's start
};

__device__ uint32_t address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// clang-format off
#define FIVE(n, a, b, c, d, e) "%" #n #a ",%" #n #b ",%" #n #c ",%" #n #d ",%" #n #e
#define TEN(n) FIVE(n, 0, 1, 2, 3, 4) "," FIVE(n, 5, 6, 7, 8, 9)
#define SUM(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA(major)                                                                          \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                        \
               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) "," TEN(2) ",%30,%31}, %32, %33, 1, " \
               "1, 1, " major ";"                                                             \
               : SUM(0), SUM(4), SUM(8), SUM(12), SUM(16), SUM(20), SUM(24), SUM(28)          \
               : "l"(a), "l"(b))
// clang-format on

template <bool kTransposed>
__device__ void multiply(const Params& p) {
  __shared__ __align__(1024) uint4 tile_a[512], tile_b[512];
  for (int i = threadIdx.x; i < 512; i += 128) {
    tile_a[i] = p.a[i];
    tile_b[i] = p.b[i];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float d[32] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int step = 0; step < 4; ++step) {
    const uint64_t a = p.descriptor_a[step] + (address(tile_a) >> 4);
    const uint64_t b = p.descriptor_b[step] + (address(tile_b) >> 4);
    if (kTransposed) {
      WGMMA("1, 1");
    } else {
      WGMMA("0, 0");
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 32; ++i) p.d[32 * threadIdx.x + i] = d[i];
}

}  // namespace

KERNEL wgmma_k_major(const __grid_constant__ Params p) { multiply<false>(p); }
KERNEL wgmma_mn_major(const __grid_constant__ Params p) { multiply<true>(p); }

// What ldmatrix would load again: lane i gives row 7 i + 3 of 32 rows of 16 bytes.
KERNEL store_matrices(const uint4* in, uint4* out) {
  __shared__ uint4 rows[32], transposed[32];
  const int lane = threadIdx.x;
  if (lane >= 32) return;
  const uint32_t place = (7 * lane + 3) % 32 * 16;
  const uint4 w = in[lane];
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address(rows) + place),
      "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
      : "memory");
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                   address(transposed) + place),
               "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
               : "memory");
  __syncwarp();
  out[lane] = rows[lane];
  out[32 + lane] = transposed[lane];
}
