// Kernels with one fault each, and some without.
//
// `expect` gives the error that the simulator must report for the line it stands on. Kernels
// without one must run. All are launched with one block of 64 threads and 64 floats, unless
// `launch` says how many blocks, threads and floats.
#include <cassert>
#include <cstdint>

#define KERNEL extern "C" __global__ void

namespace {

struct Table {
  float* out;
  int index;
  float values[30];
};

__device__ int thread() { return static_cast<int>(threadIdx.x); }

}  // namespace

// --- races within a block ----------------------------------------------------------------------
KERNEL race_of_warps(float* out) {
  __shared__ float s[64];
  s[thread()] = 1;
  __syncthreads();
  s[thread()] += s[63 - thread()];  // expect: race
  out[thread()] = s[thread()];
}

KERNEL no_race_with_barriers(float* out) {
  __shared__ float s[64];
  s[thread()] = 1;
  __syncthreads();
  const float other = s[63 - thread()];
  __syncthreads();
  s[thread()] += other;
  out[thread()] = s[thread()];
}

// launch: 1 32 32
KERNEL race_within_warp(float* out) {
  __shared__ float s[32];
  s[thread()] = 1;
  __syncwarp();
  s[thread()] += s[31 - thread()];  // expect: race
  out[thread()] = s[thread()];
}

// launch: 1 32 32
KERNEL no_race_with_syncwarp(float* out) {
  __shared__ float s[32];
  s[thread()] = 1;
  __syncwarp();
  const float other = s[31 - thread()];
  __syncwarp();
  s[thread()] += other;
  out[thread()] = s[thread()];
}

// launch: 1 32 32
KERNEL shuffle_orders_no_memory(float* out) {
  __shared__ float s[32];
  s[thread()] = 1;
  __syncwarp();
  const float other = s[31 - thread()];
  const float same = __shfl_xor_sync(~0u, other, 1);
  s[thread()] = same;  // expect: race: write after read
  out[thread()] = same;
}

KERNEL race_of_bytes(float* out) {
  __shared__ uint8_t s[64];
  s[thread()] = 1;  // neighbours in one word do not race
  __syncthreads();
  s[thread() / 2] = static_cast<uint8_t>(thread());  // expect: race: write after write
  __syncthreads();
  out[thread()] = s[thread()];
}

KERNEL bytes_of_one_word(float* out) {
  __shared__ uint8_t s[64];
  s[thread()] = static_cast<uint8_t>(thread());
  __syncthreads();
  out[thread()] =
      static_cast<float>(reinterpret_cast<uint32_t*>(s)[thread() / 4]) + s[63 - thread()];
}

KERNEL named_barrier_of_one_warp(float* out) {
  __shared__ float s[64];
  s[thread()] = 1;
  if (thread() < 32) {
    asm volatile("bar.sync 1, 32;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 32;" ::: "memory");
  }
  out[thread()] = s[63 - thread()];  // expect: race: read after write|uninitialised
}

KERNEL named_barrier_of_both_warps(float* out) {
  __shared__ float s[64];
  s[thread()] = 1;
  if (thread() < 32) {
    asm volatile("bar.arrive 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 64;" ::: "memory");
  }
  out[thread()] = thread() < 32 ? 0 : s[63 - thread()];
}

KERNEL plain_beside_atomic(float* out) {
  __shared__ int count;
  if (thread() == 0) count = 0;
  __syncthreads();
  if (thread() > 0) atomicAdd(&count, 1);
  if (thread() == 0) count = 7;  // expect: race
  __syncthreads();
  out[thread()] = static_cast<float>(count);
}

// --- races between blocks ----------------------------------------------------------------------
// launch: 4 32 32
KERNEL race_of_blocks(float* out) {
  if (blockIdx.x == 0) out[thread()] = 0;  // expect: race between blocks: write after write
  if (thread() == 0) out[0] = 1;           // expect: race between blocks: write after write
}

// launch: 2 32 32
KERNEL block_reads_what_another_writes(float* out) {
  if (blockIdx.x == 0) out[thread()] = 1;  // expect: race between blocks
  if (blockIdx.x == 1) out[31] = out[0];   // expect: race between blocks|uninitialised
}

// launch: 4 32 36
KERNEL last_block_adds_up(float* out) {
  int* count = reinterpret_cast<int*>(out + 32);
  out[8 * blockIdx.x + thread() % 8] = static_cast<float>(blockIdx.x);
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (thread() == 0) {
    last = atomicAdd(count, 1) == 3;
    __threadfence();
  }
  __syncthreads();
  if (!last || thread() > 0) return;
  float sum = 0;
  for (int i = 0; i < 32; ++i) sum += out[i];
  out[33] = sum;
  out[34] = out[35] = 0;
}

// launch: 4 32 36
KERNEL last_block_without_fence(float* out) {
  int* count = reinterpret_cast<int*>(out + 32);
  if (thread() < 8) out[8 * blockIdx.x + thread()] = static_cast<float>(blockIdx.x);
  __shared__ bool last;
  __syncthreads();
  if (thread() == 0) last = atomicAdd(count, 1) == 3;
  __syncthreads();
  if (!last || thread() > 0) return;
  float sum = 0;
  for (int i = 0; i < 32; ++i) sum += out[i];  // expect: race between blocks: read after write
  out[33] = sum;
}

// launch: 4 32 32
KERNEL atomics_of_blocks(float* out) { atomicAdd(out + thread(), 1.f); }

// --- bounds, alignment, initialisation ---------------------------------------------------------
// launch: 2 64 100
KERNEL write_beyond_buffer(float* out) {
  const int i = static_cast<int>(blockIdx.x) * 64 + thread();
  if (i <= 100) out[i] = 1;  // expect: write out of bounds: buffer \d+ of 400 bytes at byte 400
}

KERNEL read_before_buffer(float* out) {
  out[thread()] = out[thread() - 1];  // expect: read out of bounds|uninitialised|race
}

KERNEL read_far_away(float* out) {
  out[thread()] = out[1ll << 40];  // expect: no memory of the device
}

KERNEL null_pointer(float* out) {
  const float* nothing = out == nullptr ? out : nullptr;
  asm volatile("" : "+l"(nothing));
  out[thread()] = *nothing;  // expect: read of address 0x0
}

KERNEL beyond_shared_memory(float* out) {
  __shared__ float s[64];
  s[thread()] = 1;
  __syncthreads();
  out[thread()] = s[thread() + 1];  // expect: read out of bounds of shared memory: byte 256 of 256
}

KERNEL uninitialised_shared(float* out) {
  __shared__ float s[64];
  if (thread() != 9) s[thread()] = 1;
  __syncthreads();
  out[thread()] = s[thread()];  // expect: uninitialised memory: shared memory\+36
}

KERNEL uninitialised_global(float* out) {
  out[thread()] = out[thread()] + 1;  // expect: uninitialised memory: buffer
}

KERNEL half_a_word_uninitialised(float* out) {
  __shared__ uint16_t s[128];
  s[thread()] = 1;
  __syncthreads();
  out[thread()] = static_cast<float>(reinterpret_cast<uint32_t*>(s)[thread()]);  // expect: uninit
}

KERNEL misaligned(float* out) {
  if (thread() == 0) {
    *reinterpret_cast<float2*>(out + 1) = make_float2(1, 2);  // expect: misaligned access
  }
}

KERNEL beyond_parameters(const __grid_constant__ Table table) {
  // The index is that of the last value plus one, and a little more.
  table.out[thread()] = table.values[table.index];  // expect: out of bounds of the kernel's param
}

KERNEL of_another_thread(float* out) {
  __shared__ float* where[64];
  float own[2] = {1, static_cast<float>(thread())};
  where[thread()] = &own[thread() & 1];
  __syncthreads();
  out[thread()] = *where[thread() ^ 1];  // expect: another thread's local memory
}

KERNEL asserts(float* out) {
  out[thread()] = 1;
  assert(thread() < 60);  // expect: assertion failed: thread\(\) < 60
}

KERNEL traps(float* out) {
  out[thread()] = 1;
  if (thread() == 60) __trap();  // expect: trap
}

// --- threads that do not come ------------------------------------------------------------------
// launch: 1 32 32
KERNEL lanes_at_different_instructions(float* out) {
  if (thread() & 1) {
    out[thread()] = __shfl_sync(~0u, 1.f, 0);  // expect: divergent warp
  } else {
    out[thread()] = static_cast<float>(__ballot_sync(~0u, 1));  // expect: divergent warp
  }
}

// launch: 1 32 32
KERNEL shuffle_outside_mask(float* out) {
  const unsigned mask = thread() < 16 ? 0xFFFFu : 0xFFFF0000u;
  out[thread()] = __shfl_sync(mask, 1.f, 31);  // expect: shuffle reads lane 31, which is outside
}

// launch: 1 32 32
KERNEL mask_names_exited_lane(float* out) {
  out[thread()] = 1;
  if (thread() == 5) return;
  out[thread()] = __shfl_xor_sync(~0u, 1.f, 1);  // expect: has exited|deadlock
}

KERNEL lanes_at_different_barriers(float* out) {
  if (thread() & 1) {
    __syncthreads();  // expect: divergent barrier
  } else {
    __syncthreads();  // expect: divergent barrier
  }
  out[thread()] = 1;
}

KERNEL barrier_after_exit(float* out) {
  out[thread()] = 1;
  if (thread() >= 32) return;
  __syncthreads();
}

KERNEL barrier_for_too_many(float* out) {
  out[thread()] = 1;
  asm volatile("bar.sync 1, 96;" ::: "memory");  // expect: deadlock
}

KERNEL waits_for_itself(float* out) {
  volatile float* flag = out;
  out[thread()] = 0;
  __syncthreads();
  if (thread() == 1) {
    while (*flag == 0) {  // expect: threads wait for each other in loops
    }
  }
}
