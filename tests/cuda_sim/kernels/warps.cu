// What the lanes of a warp do together, and atomics.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#define KERNEL extern "C" __global__ void

// One warp; out[k][lane] is the k-th result of each lane.
KERNEL shuffles(const uint32_t* in, const int* lanes, uint32_t* out) {
  const int lane = threadIdx.x;
  const uint32_t x = in[lane];
  out += lane;
  out[0 * 32] = __shfl_sync(~0u, x, lanes[lane]);
  out[1 * 32] = __shfl_sync(~0u, x, lanes[lane], 8);
  out[2 * 32] = __shfl_up_sync(~0u, x, 3);
  out[3 * 32] = __shfl_up_sync(~0u, x, 5, 16);
  out[4 * 32] = __shfl_down_sync(~0u, x, 3);
  out[5 * 32] = __shfl_down_sync(~0u, x, 5, 8);
  out[6 * 32] = __shfl_xor_sync(~0u, x, 9);
  out[7 * 32] = __shfl_xor_sync(~0u, x, 6, 4);
  // Each half for itself.
  const uint32_t half = lane < 16 ? 0xFFFFu : 0xFFFF0000u;
  out[8 * 32] = __shfl_xor_sync(half, x, 15);
}

KERNEL votes(const uint32_t* in, uint32_t* out) {
  const int lane = threadIdx.x;
  const uint32_t x = in[lane], some = 0x0FF0F00Fu;
  out += lane;
  out[0 * 32] = __ballot_sync(~0u, x & 1);
  out[1 * 32] = __any_sync(~0u, x > 4000000000u);
  out[2 * 32] = __all_sync(~0u, x < 4000000000u);
  out[3 * 32] = __match_any_sync(~0u, x & 3);
  int every = 7;
  out[4 * 32] = __match_all_sync(~0u, x & 0, &every);
  out[5 * 32] = every;
  out[6 * 32] = __reduce_add_sync(~0u, x);
  out[7 * 32] = __reduce_min_sync(~0u, x);
  out[8 * 32] = __reduce_max_sync(~0u, static_cast<int>(x));
  out[9 * 32] = __reduce_xor_sync(~0u, x);
  out[10 * 32] = some >> lane & 1 ? __ballot_sync(some, x & 2) : 0;
  out[11 * 32] = some >> lane & 1 ? __reduce_and_sync(some, x) : 0;
}

// Blocks of 96 threads.
KERNEL block_votes(const uint32_t* in, uint32_t* out) {
  const int i = blockIdx.x * 96 + threadIdx.x;
  out[3 * i] = __syncthreads_count(in[i] & 1);
  out[3 * i + 1] = __syncthreads_or(in[i] > 4000000000u);
  out[3 * i + 2] = __syncthreads_and(in[i] < 4000000000u);
}

// Counters that all threads update: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor, 6 inc, 7 dec, 8 exch,
// 9 cas; the same in shared memory, written to counters[16 + i] by each block's first thread.
KERNEL atomics(const uint32_t* in, uint32_t* counters, float* sums) {
  __shared__ uint32_t own[10];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t x = in[i];
  if (threadIdx.x < 10) own[threadIdx.x] = threadIdx.x == 1 || threadIdx.x == 3 ? ~0u : 0;
  __syncthreads();
  for (uint32_t* to : {counters, own}) {
    atomicAdd(to, x);
    atomicMin(to + 1, x);
    atomicMax(to + 2, x);
    atomicAnd(to + 3, x);
    atomicOr(to + 4, x);
    atomicXor(to + 5, x);
    atomicInc(to + 6, 5);
    atomicDec(to + 7, 5);
    atomicExch(to + 8, 77);
    atomicCAS(to + 9, 0, 88);
  }
  atomicAdd(sums, 0.5f);
  __syncthreads();
  if (threadIdx.x < 10) atomicAdd(counters + 16 + threadIdx.x, own[threadIdx.x]);
}

KERNEL atomics_of_halves(__half2* halves, __nv_bfloat162* bfloats, double* sum) {
  atomicAdd(halves, __floats2half2_rn(1.f, 0.5f));
  atomicAdd(bfloats, __floats2bfloat162_rn(1.f, 0.5f));
  atomicAdd(sum, 0.25);
}
