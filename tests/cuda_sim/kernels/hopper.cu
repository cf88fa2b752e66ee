// A pipeline of sm_90a: one warp copies tiles by TMA, a warpgroup multiplies them by wgmma. Each
// kernel but the first of a family has one fault; `expect` is the error, wherever it is found.
//
// D[64][64] = sum over steps of A[64][64] B[64][64]^T, 16-bit floats, tiles in 128-byte swizzle.
#include <cuda.h>

#include <cstdint>

#define KERNEL extern "C" __global__ void __launch_bounds__(160)

namespace {

enum Fault {
  kNone,
  kNoFullWait,
  kNoEmptyWait,
  kWrongEmptyPhase,
  kEarlyRelease,
  kTooManyArrivals,
  kTooManyBytes,
  kInitNotVisible,
  kNoProxyFence,
  kChangedUnderProduct,
  kNoStoreFence,
  kNoStoreWait,
  kChangedUnderStore,
};

struct alignas(64) Params {
  CUtensorMap a, b, out;
  float* d;
  int steps;
};

constexpr int kStages = 2, kConsumers = 128;
constexpr uint32_t kTileBytes = 64 * 64 * 2;

struct alignas(1024) Shared {
  uint16_t a[kStages][64 * 64], b[kStages][64 * 64];
  uint64_t full[kStages], empty[kStages];
};

__device__ uint32_t address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ void init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count)
               : "memory");
}
__device__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ void wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(address(barrier)), "r"(parity)
        : "memory");
  }
}

__device__ void load_tile(const void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(address(to)),
      "l"(map), "r"(address(barrier)), "r"(x), "r"(y)
      : "memory");
}
__device__ void store_tile(const CUtensorMap* map, int x, int y, const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(address(from)), "r"(x), "r"(y)
      : "memory");
}

__device__ void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

__device__ uint64_t descriptor(uint32_t start) {  // rows of 128 bytes, groups of 8 rows, swizzled
  return uint64_t(start >> 4 & 0x3FFF) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}

// clang-format off
#define FIVE(n, a, b, c, d, e) "%" #n #a ",%" #n #b ",%" #n #c ",%" #n #d ",%" #n #e
#define TEN(n) FIVE(n, 0, 1, 2, 3, 4) "," FIVE(n, 5, 6, 7, 8, 9)
#define SUM(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
// clang-format on

__device__ void multiply(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) "," TEN(2) ",%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
      : SUM(0), SUM(4), SUM(8), SUM(12), SUM(16), SUM(20), SUM(24), SUM(28)
      : "l"(a), "l"(b));
}

__device__ void multiply_tiles(float (&d)[32], const uint16_t* a, const uint16_t* b) {
  for (uint32_t k = 0; k < 4; ++k) {  // 16 elements are 32 bytes
    multiply(d, descriptor(address(a) + 32 * k), descriptor(address(b) + 32 * k));
  }
}

__device__ void write(float* to, const float (&d)[32]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  for (int i = 0; i < 32; ++i) {
    to[(row + 8 * (i / 2 % 2)) * 64 + 8 * (i / 4) + 2 * (lane % 4) + i % 2] = d[i];
  }
}

template <Fault kFault>
__device__ void pipeline(const Params& p) {
  extern __shared__ Shared shared[];
  Shared& s = *shared;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init(&s.full[i], 1);
      init(&s.empty[i], kFault == kTooManyArrivals ? kConsumers + 1 : kConsumers);
    }
    fence_proxy();
  }
  if (kFault != kInitNotVisible) __syncthreads();
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x > kConsumers) return;
    for (int step = 0; step < p.steps; ++step) {
      const int stage = step % kStages;
      const uint32_t round = step / kStages, phase = kFault == kWrongEmptyPhase ? round : round ^ 1;
      if (step >= kStages && kFault != kNoEmptyWait) wait(&s.empty[stage], phase & 1);
      const uint32_t bytes = kFault == kTooManyBytes ? 2 * kTileBytes + 16 : 2 * kTileBytes;
      arrive_expecting(&s.full[stage], bytes);
      load_tile(s.a[stage], &p.a, 64 * step, 0, &s.full[stage]);
      load_tile(s.b[stage], &p.b, 64 * step, 0, &s.full[stage]);
    }
    return;
  }
  float d[32] = {};
  for (int step = 0; step < p.steps; ++step) {
    const int stage = step % kStages;
    if (kFault != kNoFullWait) wait(&s.full[stage], step / kStages & 1);
    fence_products();
    multiply_tiles(d, s.a[stage], s.b[stage]);
    commit_products();
    if (kFault == kEarlyRelease) arrive(&s.empty[stage]);
    wait_for_products();
    if (kFault != kEarlyRelease) arrive(&s.empty[stage]);
  }
  write(p.d, d);
}

// The same product of one step, its tiles stored by threads.
template <Fault kFault>
__device__ void stored(const Params& p) {
  extern __shared__ Shared shared[];
  Shared& s = *shared;
  for (int i = threadIdx.x; i < 64 * 64; i += 160) s.a[0][i] = s.b[0][i] = 0x3F80;  // 1.0
  if (kFault != kNoProxyFence) fence_proxy();
  __syncthreads();
  if (threadIdx.x >= kConsumers) return;
  float d[32] = {};
  fence_products();
  multiply_tiles(d, s.a[0], s.b[0]);
  commit_products();
  if (kFault == kChangedUnderProduct) s.a[0][threadIdx.x] = 0;
  wait_for_products();
  write(p.d, d);
}

// A tile of 64 x 64 sent back to global memory.
template <Fault kFault>
__device__ void sends(const Params& p) {
  extern __shared__ Shared shared[];
  Shared& s = *shared;
  for (int i = threadIdx.x; i < 64 * 64; i += 160) s.a[0][i] = static_cast<uint16_t>(i / 64);
  if (kFault != kNoStoreFence) fence_proxy();
  __syncthreads();
  if (threadIdx.x > 0) return;
  store_tile(&p.out, 0, 0, s.a[0]);
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  if (kFault == kChangedUnderStore) s.a[0][5] = 77;
  if (kFault != kNoStoreWait) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace

#define PARAMS const __grid_constant__ Params p

KERNEL pipeline_right(PARAMS) { pipeline<kNone>(p); }
KERNEL pipeline_no_full_wait(PARAMS) { pipeline<kNoFullWait>(p); }    // expect: asynchronous|uninit
KERNEL pipeline_no_empty_wait(PARAMS) { pipeline<kNoEmptyWait>(p); }  // expect: more arrivals|race
KERNEL pipeline_wrong_empty_phase(PARAMS) {
  pipeline<kWrongEmptyPhase>(p);  // expect: more arrivals|race|deadlock
}
KERNEL pipeline_early_release(PARAMS) {
  pipeline<kEarlyRelease>(p);  // expect: changed under a wgmma|race
}
KERNEL pipeline_too_many_arrivals(PARAMS) {
  pipeline<kTooManyArrivals>(p);  // expect: deadlock.* 128 of 129 arrived
}
KERNEL pipeline_too_many_bytes(PARAMS) {
  pipeline<kTooManyBytes>(p);  // expect: deadlock.* 16 bytes outstanding
}
KERNEL pipeline_init_not_visible(PARAMS) {
  pipeline<kInitNotVisible>(p);  // expect: before mbarrier.init|initialisation is visible
}
KERNEL stored_right(PARAMS) { stored<kNone>(p); }
KERNEL stored_without_fence(PARAMS) {
  stored<kNoProxyFence>(p);  // expect: missing fence.proxy.async
}
KERNEL stored_changed(PARAMS) {
  stored<kChangedUnderProduct>(p);
}  // expect: changed under a wgmma|race
KERNEL sends_right(PARAMS) { sends<kNone>(p); }
KERNEL sends_without_fence(PARAMS) {
  sends<kNoStoreFence>(p);
}  // expect: missing fence.proxy.async
KERNEL sends_without_wait(PARAMS) { sends<kNoStoreWait>(p); }  // expect: bulk stores not waited for
KERNEL sends_and_changes(PARAMS) {
  sends<kChangedUnderStore>(p);
}  // expect: changed under a bulk store
