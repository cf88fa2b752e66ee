// Sines and cosines of phases, as positional_encoding.h defines them.
#pragma once

#include "../../cuda/device.cuh"

namespace tegula {

// The phase is rounded before anything else happens to it, as on the CPU.
TEGULA_DEVICE void sinusoid_pair(double frequency, double position, double& sine, double& cosine) {
  sincos(__dmul_rn(frequency, position), &sine, &cosine);
}

}  // namespace tegula
