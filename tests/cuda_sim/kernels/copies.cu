// Faults of cp.async; read kernels/bugs.cu first. Parameters: 64 floats to read, 64 to write.
#include <cstdint>

#define KERNEL extern "C" __global__ void

namespace {

__device__ int thread() { return static_cast<int>(threadIdx.x); }

__device__ void copy(float* to, const float* from) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace

KERNEL copy_and_wait(const float* in, float* out) {
  __shared__ float s[64];
  copy(s + thread(), in + thread());
  commit();
  wait<0>();
  __syncthreads();
  out[thread()] = s[63 - thread()];
}

KERNEL copy_without_wait(const float* in, float* out) {
  __shared__ float s[64];
  copy(s + thread(), in + thread());
  commit();
  __syncthreads();
  out[thread()] = s[63 - thread()];  // expect: asynchronous copy that was not waited for
  wait<0>();
}

KERNEL copy_without_barrier(const float* in, float* out) {
  __shared__ float s[64];
  s[thread()] = 0;
  __syncthreads();
  copy(s + thread(), in + thread());  // expect: race: write after read
  commit();
  wait<0>();
  out[thread()] = s[63 - thread()];  // expect: race|asynchronous copy
}

KERNEL barrier_before_wait(const float* in, float* out) {
  __shared__ float s[64];
  copy(s + thread(), in + thread());
  commit();
  __syncthreads();
  wait<0>();
  out[thread()] = s[63 - thread()];  // expect: race|asynchronous copy
}

KERNEL one_group_too_few(const float* in, float* out) {
  __shared__ float s[2][64];
  for (int i = 0; i < 2; ++i) {
    copy(s[i] + thread(), in + thread());
    commit();
  }
  wait<1>();
  __syncthreads();
  out[thread()] = s[1][63 - thread()];  // expect: asynchronous copy that was not waited for
  wait<0>();
}

KERNEL copy_not_committed(const float* in, float* out) {
  __shared__ float s[64];
  copy(s + thread(), in + thread());
  wait<0>();
  __syncthreads();
  out[thread()] = s[63 - thread()];  // expect: asynchronous copy that was not waited for
  commit();
  wait<0>();
}

KERNEL exits_with_copy(const float* in, float* out) {
  __shared__ float s[64];
  out[thread()] = 1;
  copy(s + thread(), in + thread());  // expect: exits with cp.async in flight
  commit();
}
