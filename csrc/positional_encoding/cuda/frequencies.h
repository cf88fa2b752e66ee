// A sinusoid's frequencies in device memory.
//
// They are the CPU's, bit for bit: a phase of 2^24 radians leaves no room for another rounding of
// the frequency. They travel as parameters of a small kernel, so that nothing waits for a copy and
// a captured graph holds them.
#pragma once

#include "../../cuda/place.h"
#include "../positional_encoding.h"

namespace tegula {

inline constexpr int kFrequenciesPerLaunch = 1024;

struct FrequencyParams {
  double* to = nullptr;
  int64_t count = 0;
  double values[kFrequenciesPerLaunch];
};

// Writes sinusoid.half() numbers.
void store_frequencies(const Sinusoid& sinusoid, double* to, const Place& place);

}  // namespace tegula
