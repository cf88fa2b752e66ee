// Devices, contexts and the errors of the driver.
#include <stdio.h>
#include <string.h>

#include <map>

#include "device_memory.h"
#include "driver.h"

namespace cusim {

std::recursive_mutex driver_mutex;

namespace {

// Contexts are told apart by their addresses only.
char contexts[kMaxDevices];
thread_local std::vector<CUcontext> context_stack;
thread_local std::string error_text;
thread_local CUresult error_code = CUDA_SUCCESS;

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&contexts[device]); }

bool is_context(CUcontext context) {
  const size_t index = size_t(reinterpret_cast<char*>(context) - contexts);
  return index < kMaxDevices;
}

}  // namespace

CUresult error(CUresult code, std::string details) {
  error_code = code;
  error_text = std::move(details);
  return code;
}

int current_device() {
  if (context_stack.empty() || context_stack.back() == nullptr) return -1;
  return int(reinterpret_cast<char*>(context_stack.back()) - contexts);
}

int shared_bytes_per_block() {
  switch (pretence.capability) {
    case 80:
    case 87: return 166912;
    case 90:
    case 100:
    case 103: return 232448;
    default: return 101376;
  }
}

}  // namespace cusim

using namespace cusim;

DRIVER_API cuInit(unsigned flags) {
  DRIVER_CALL;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return pretence.devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

DRIVER_API cuDriverGetVersion(int* version) {
  DRIVER_CALL;
  *version = pretence.driver_version;
  return CUDA_SUCCESS;
}

DRIVER_API cuDeviceGetCount(int* count) {
  DRIVER_CALL;
  *count = pretence.devices;
  return CUDA_SUCCESS;
}

DRIVER_API cuDeviceGet(CUdevice* device, int ordinal) {
  DRIVER_CALL;
  if (ordinal < 0 || ordinal >= pretence.devices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

DRIVER_API cuDeviceGetName(char* name, int length, CUdevice device) {
  DRIVER_CALL;
  if (device < 0 || device >= pretence.devices) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, size_t(length), "Simulated sm_%d device %d", pretence.capability, device);
  return CUDA_SUCCESS;
}

DRIVER_API cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  DRIVER_CALL;
  if (device < 0 || device >= pretence.devices) return CUDA_ERROR_INVALID_DEVICE;
  static const std::map<int, int> kFixed = {
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
      {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0},
      {CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, pretence.capability >= 90},
  };
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = pretence.capability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = pretence.capability % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = pretence.processors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = shared_bytes_per_block();
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = shared_bytes_per_block() + 1024;
      break;
    default: {
      const auto found = kFixed.find(attribute);
      if (found == kFixed.end()) {
        return error(CUDA_ERROR_INVALID_VALUE,
                     "the simulator knows no device attribute " + std::to_string(int(attribute)));
      }
      *value = found->second;
    }
  }
  return CUDA_SUCCESS;
}

// --- contexts ----------------------------------------------------------------------------------
DRIVER_API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  DRIVER_CALL;
  if (device < 0 || device >= pretence.devices) return CUDA_ERROR_INVALID_DEVICE;
  *context = context_of(device);
  return CUDA_SUCCESS;
}

DRIVER_API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  DRIVER_CALL;
  return device < 0 || device >= pretence.devices ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

DRIVER_API cuCtxGetCurrent(CUcontext* context) {
  DRIVER_CALL;
  *context = context_stack.empty() ? nullptr : context_stack.back();
  return CUDA_SUCCESS;
}

DRIVER_API cuCtxSetCurrent(CUcontext context) {
  DRIVER_CALL;
  if (context != nullptr && !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context_stack.empty()) context_stack.pop_back();
  if (context != nullptr) context_stack.push_back(context);
  return CUDA_SUCCESS;
}

DRIVER_API cuCtxPushCurrent_v2(CUcontext context) {
  DRIVER_CALL;
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack.push_back(context);
  return CUDA_SUCCESS;
}

DRIVER_API cuCtxPopCurrent_v2(CUcontext* context) {
  DRIVER_CALL;
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = context_stack.back();
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

DRIVER_API cuCtxGetDevice(CUdevice* device) {
  DRIVER_CALL;
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current_device();
  return CUDA_SUCCESS;
}

DRIVER_API cuCtxSynchronize() {
  DRIVER_CALL;
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return refuse_in_capture("cuCtxSynchronize");
}

// --- errors ------------------------------------------------------------------------------------
namespace {

struct ErrorWords {
  CUresult code;
  const char *name, *text;
};
constexpr ErrorWords kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
};

const ErrorWords* words_of(CUresult code) {
  for (const ErrorWords& words : kErrors) {
    if (words.code == code) return &words;
  }
  return nullptr;
}

}  // namespace

DRIVER_API cuGetErrorName(CUresult code, const char** name) {
  const ErrorWords* words = words_of(code);
  *name = words == nullptr ? nullptr : words->name;
  return words == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

DRIVER_API cuGetErrorString(CUresult code, const char** text) {
  const ErrorWords* words = words_of(code);
  *text = words == nullptr ? nullptr : words->text;
  if (code != CUDA_SUCCESS && code == error_code && !error_text.empty()) *text = error_text.c_str();
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
