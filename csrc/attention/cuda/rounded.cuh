// Arithmetic that the compiler never fuses or splits: where results have to have the same bits in
// every kernel, whatever code stands around them.
#pragma once

#include "../../cuda/device.cuh"

namespace tegula {

TEGULA_DEVICE float rounded_product(float x, float y) { return __fmul_rn(x, y); }
TEGULA_DEVICE double rounded_product(double x, double y) { return __dmul_rn(x, y); }
TEGULA_DEVICE float rounded_sum(float x, float y) { return __fadd_rn(x, y); }
TEGULA_DEVICE double rounded_sum(double x, double y) { return __dadd_rn(x, y); }
// x * y + z, rounded once.
TEGULA_DEVICE float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
TEGULA_DEVICE double fused(double x, double y, double z) { return __fma_rn(x, y, z); }

// 2^x within 2 units in the last place, subnormal results included.
TEGULA_DEVICE float power_of_2(float x) { return exp2f(x); }
TEGULA_DEVICE double power_of_2(double x) { return exp2(x); }

}  // namespace tegula
