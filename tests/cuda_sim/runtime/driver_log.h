// What tests may ask about launches.
#pragma once

#include <stdint.h>

extern "C" {
struct CudaSimLaunch {
  const char* kernel;
  const char* arch;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  int32_t device;
  uint64_t stream;
};
}

namespace cusim {

void log_launch(const CudaSimLaunch& launch);

}  // namespace cusim
