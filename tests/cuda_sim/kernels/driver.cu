// Kernels for the tests of the stand-in driver.
#include <cstdint>

#define KERNEL extern "C" __global__ void

struct Params {
  int64_t numbers[500];
  float* out;
  int index;
};

KERNEL fill(float* out, float value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = value;
}

KERNEL add(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] += in[i];
}

// 500 numbers by value, one of them chosen at run time.
KERNEL by_value(const __grid_constant__ Params p) {
  p.out[threadIdx.x] = static_cast<float>(p.numbers[p.index + threadIdx.x]);
}

KERNEL __launch_bounds__(64) bounded(float* out) {
  extern __shared__ float dynamic[];
  __shared__ float fixed[256];
  fixed[threadIdx.x] = dynamic[threadIdx.x] = 1;
  out[threadIdx.x] = fixed[threadIdx.x] + dynamic[threadIdx.x];
}

// Which translation runs.
KERNEL architecture(int* out) { *out = __CUDA_ARCH__; }

// Memory of the host that kernels see, as for errors that they report.
KERNEL report(uint32_t* fault, int* place) {
  if (atomicCAS(fault, 0u, 1u) == 0u) {
    *place = static_cast<int>(blockIdx.x);
    __threadfence_system();
    atomicExch(fault + 1, 7u);
  }
}
