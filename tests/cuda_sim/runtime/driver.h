// A stand-in for libcuda.so.1 whose devices are this simulator.
//
// Whoever opens this library instead of the driver runs all of its own host code for real. A launch
// runs at once, whatever its stream; while a capture is going on, launches and memory operations of
// streams are kept instead, and a replay runs them.
#pragma once

#include <cuda.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "device_code.h"

#define CUDA_SIM_EXPORT extern "C" __attribute__((visibility("default")))
#define DRIVER_API CUDA_SIM_EXPORT CUresult

namespace cusim {

// What the simulator pretends: from the environment, or set by tests (driver_control.cpp).
struct Pretence {
  int devices = 2;
  int capability = 80;
  int driver_version = 13000;
  int processors = 4;
  bool capturing = false;
};
extern Pretence pretence;

extern std::recursive_mutex driver_mutex;

// Every call of the driver: counts it under its name and keeps others out.
class Call {
 public:
  explicit Call(const char* name);

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};
#define DRIVER_CALL const cusim::Call call_(__func__)

// An error with the text that cuGetErrorString gives for it from now on, in this thread.
CUresult error(CUresult code, std::string details);

// The device of the current context, or -1.
int current_device();

// Whether a call that no capture allows may go on.
CUresult refuse_in_capture(const char* name);

// Runs at once, or keeps it for a replay.
CUresult run_on_stream(std::function<CUresult()> operation);

int shared_bytes_per_block();  // the most that a kernel may opt in to

std::vector<const Kernel*>& all_kernels();

}  // namespace cusim
