// What kernels of every operation use: elements of any float type, integers of any type, where a
// thread stands.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "../base/dtype.h"
#include "../base/view.h"

namespace tegula {

#define TEGULA_DEVICE __device__ __forceinline__

// Sums of T are kept in this type.
template <class T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<double> {
  using type = double;
};
template <class T>
using Sum = typename SumOf<T>::type;

TEGULA_DEVICE float widen(float x) { return x; }
TEGULA_DEVICE double widen(double x) { return x; }
TEGULA_DEVICE float widen(Half x) { return __half2float(__ushort_as_half(x.bits)); }
TEGULA_DEVICE float widen(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}

// Rounded to nearest, ties to even.
TEGULA_DEVICE void narrow(double x, double& to) { to = x; }
TEGULA_DEVICE void narrow(float x, float& to) { to = x; }
TEGULA_DEVICE void narrow(double x, float& to) { to = static_cast<float>(x); }
TEGULA_DEVICE void narrow(float x, Half& to) { to.bits = __half_as_ushort(__float2half_rn(x)); }
TEGULA_DEVICE void narrow(double x, Half& to) { to.bits = __half_as_ushort(__double2half(x)); }
TEGULA_DEVICE void narrow(float x, BFloat16& to) {
  to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
TEGULA_DEVICE void narrow(double x, BFloat16& to) {
  to.bits = __bfloat16_as_ushort(__double2bfloat16(x));
}

// The float element at `offset`, whatever the view's float type, as C (float or double).
template <class C>
TEGULA_DEVICE C load_float(const View& view, int64_t offset) {
  switch (view.dtype) {
    case DType::kFloat64: return static_cast<C>(*view.at<double>(offset));
    case DType::kFloat32: return static_cast<C>(*view.at<float>(offset));
    case DType::kFloat16: return static_cast<C>(widen(*view.at<Half>(offset)));
    default: return static_cast<C>(widen(*view.at<BFloat16>(offset)));
  }
}

template <class C>
TEGULA_DEVICE void store_float(const View& view, int64_t offset, C value) {
  switch (view.dtype) {
    case DType::kFloat64: *view.at<double>(offset) = static_cast<double>(value); return;
    case DType::kFloat32: *view.at<float>(offset) = static_cast<float>(value); return;
    case DType::kFloat16: narrow(value, *view.at<Half>(offset)); return;
    default: narrow(value, *view.at<BFloat16>(offset)); return;
  }
}

// The integer at `offset`. What int64 cannot hold becomes its largest, which no table has
// either.
TEGULA_DEVICE int64_t load_integer(const View& view, int64_t offset) {
  switch (view.dtype) {
    case DType::kInt8: return *view.at<int8_t>(offset);
    case DType::kInt16: return *view.at<int16_t>(offset);
    case DType::kInt32: return *view.at<int32_t>(offset);
    case DType::kUInt8: return *view.at<uint8_t>(offset);
    case DType::kUInt16: return *view.at<uint16_t>(offset);
    case DType::kUInt32: return *view.at<uint32_t>(offset);
    case DType::kUInt64: {
      const uint64_t value = *view.at<uint64_t>(offset);
      return value >> 63 ? INT64_MAX : static_cast<int64_t>(value);
    }
    default: return *view.at<int64_t>(offset);
  }
}

TEGULA_DEVICE int64_t global_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
TEGULA_DEVICE int64_t all_threads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace tegula
