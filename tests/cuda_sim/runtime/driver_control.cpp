// What tests set and ask, beside the driver's own functions.
#include <stdlib.h>
#include <string.h>

#include <map>

#include "counters.h"
#include "device_memory.h"
#include "driver.h"
#include "driver_log.h"
#include "state.h"

namespace cusim {

namespace {

int from_environment(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : atoi(text);
}

Pretence from_environment() {
  Pretence found;
  found.devices = from_environment("CUDA_SIM_DEVICES", found.devices);
  found.capability = from_environment("CUDA_SIM_CAPABILITY", found.capability);
  found.driver_version = from_environment("CUDA_SIM_DRIVER_VERSION", found.driver_version);
  found.processors = from_environment("CUDA_SIM_PROCESSORS", found.processors);
  scheduling_seed = uint32_t(from_environment("CUDA_SIM_SEED", 1));
  return found;
}

std::vector<CudaSimLaunch> launches;
std::map<std::string, int> calls;
std::vector<std::function<CUresult()>> captured;

}  // namespace

Pretence pretence = from_environment();

Call::Call(const char* name) : lock_(driver_mutex) { ++calls[name]; }

void log_launch(const CudaSimLaunch& launch) { launches.push_back(launch); }

CUresult refuse_in_capture(const char* name) {
  if (!pretence.capturing) return CUDA_SUCCESS;
  return error(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, std::string(name) + " during a capture");
}

CUresult run_on_stream(std::function<CUresult()> operation) {
  if (!pretence.capturing) return operation();
  captured.push_back(std::move(operation));
  return CUDA_SUCCESS;
}

}  // namespace cusim

using namespace cusim;

// False for an unknown setting or a value that it cannot have.
CUDA_SIM_EXPORT bool cuda_sim_set(const char* name, int value) {
  const std::string setting = name;
  if (setting == "devices" && value >= 0 && value <= kMaxDevices) {
    pretence.devices = value;
  } else if (setting == "capability" && value > 0) {
    pretence.capability = value;
  } else if (setting == "driver_version") {
    pretence.driver_version = value;
  } else if (setting == "processors" && value > 0) {
    pretence.processors = value;
  } else if (setting == "seed") {
    scheduling_seed = uint32_t(value);
  } else if (setting == "capturing") {
    if (value && !pretence.capturing) captured.clear();
    pretence.capturing = value != 0;
  } else {
    return false;
  }
  return true;
}

// Runs what was captured last, as often as it is called.
CUDA_SIM_EXPORT int cuda_sim_replay() {
  for (const auto& operation : captured) {
    if (const CUresult failed = operation()) return failed;
  }
  return CUDA_SUCCESS;
}

CUDA_SIM_EXPORT int cuda_sim_launch_count() { return int(launches.size()); }
CUDA_SIM_EXPORT void cuda_sim_launch(int index, CudaSimLaunch* launch) {
  *launch = launches.at(size_t(index));
}
CUDA_SIM_EXPORT void cuda_sim_forget_launches() { launches.clear(); }

// How often a function of the driver was called.
CUDA_SIM_EXPORT int cuda_sim_call_count(const char* name) {
  const auto found = calls.find(name);
  return found == calls.end() ? 0 : found->second;
}
CUDA_SIM_EXPORT void cuda_sim_forget_calls() { calls.clear(); }

CUDA_SIM_EXPORT void cuda_sim_counters(Counters* found) { *found = counters; }

// --- memory, as a framework's allocator hands it out: of any device, during captures too ------

// Null where there is no room.
CUDA_SIM_EXPORT void* cuda_sim_allocate(size_t bytes, int device) {
  const std::lock_guard<std::recursive_mutex> lock(driver_mutex);
  return device < 0 || device >= kMaxDevices ? nullptr : allocate(bytes, device);
}
CUDA_SIM_EXPORT bool cuda_sim_release(void* start) {
  const std::lock_guard<std::recursive_mutex> lock(driver_mutex);
  return release(static_cast<char*>(start));
}
// Counts bytes as written by the host, which has put them there.
CUDA_SIM_EXPORT bool cuda_sim_mark_written(const void* start, size_t bytes) {
  const std::lock_guard<std::recursive_mutex> lock(driver_mutex);
  const Allocation* found = find(start);
  if (found != nullptr) mark_written(*found, static_cast<const char*>(start), bytes);
  return found != nullptr;
}
// Makes what is written so far of an allocation read-only for kernels, or writable again.
CUDA_SIM_EXPORT bool cuda_sim_protect(const void* start, bool read_only) {
  const std::lock_guard<std::recursive_mutex> lock(driver_mutex);
  const Allocation* found = find(start);
  if (found != nullptr) protect(*found, read_only);
  return found != nullptr;
}
// Bytes that nobody has written; -1 where there is no such memory.
CUDA_SIM_EXPORT int64_t cuda_sim_unwritten(const void* start, size_t bytes) {
  const std::lock_guard<std::recursive_mutex> lock(driver_mutex);
  const Allocation* found = find(start);
  if (found == nullptr) return -1;
  return int64_t(count_unwritten(*found, static_cast<const char*>(start), bytes));
}
