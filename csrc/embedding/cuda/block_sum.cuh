// Sums over threads, in their order.
#pragma once

#include "../../cuda/device.cuh"

namespace tegula {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

// The sum of the values of this lane and those before it.
TEGULA_DEVICE int64_t sum_of_lanes(int64_t value) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int64_t before = __shfl_up_sync(kAllLanes, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

// The sum of the values of all threads of the block before this one, in `total` that of all.
// kThreads is a multiple of kWarp, and kWarp * kWarp at most.
template <int kThreads>
TEGULA_DEVICE int64_t sum_before(int64_t value, int64_t& total) {
  __shared__ int64_t sums[kThreads / kWarp];  // of the warps
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t sum = sum_of_lanes(value);
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  int64_t before = 0;
  total = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) {
    before += i < warp ? sums[i] : 0;
    total += sums[i];
  }
  __syncthreads();  // for the next call
  return before + sum - value;
}

}  // namespace tegula
