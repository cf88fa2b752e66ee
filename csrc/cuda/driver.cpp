#include "driver.h"

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../base/check.h"
#include "fatbins.h"
#include "launch.h"

namespace tegula {
namespace {

// Every function of the driver that is used here. The names in the library carry the version of
// their interface, which cuda.h adds by macros.
#define TEGULA_DRIVER_FUNCTIONS(X)                                                            \
  X(cuInit)                                                                                   \
  X(cuDriverGetVersion)                                                                       \
  X(cuDeviceGetCount)                                                                         \
  X(cuDeviceGet)                                                                              \
  X(cuDeviceGetName)                                                                          \
  X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuCtxGetCurrent) X(cuCtxPushCurrent)  \
      X(cuCtxPopCurrent) X(cuModuleLoadData) X(cuModuleGetFunctionCount)                      \
          X(cuModuleEnumerateFunctions) X(cuFuncGetName) X(cuFuncGetParamInfo)                \
              X(cuFuncGetAttribute) X(cuFuncSetAttribute) X(cuLaunchKernel) X(cuGetErrorName) \
                  X(cuGetErrorString) X(cuMemHostAlloc) X(cuMemHostGetDevicePointer)          \
                      X(cuMemsetD8Async) X(cuMemcpyDtoHAsync) X(cuStreamSynchronize)          \
                          X(cuStreamIsCapturing) X(cuPointerGetAttribute)                     \
                              X(cuTensorMapEncodeTiled)

#define TEGULA_TEXT_OF(name) #name
#define TEGULA_NAME(name) TEGULA_TEXT_OF(name)

constexpr int kNeededMajor = 8;  // cp.async and mma of bfloat16

struct Driver {
#define TEGULA_DECLARE(function) decltype(&::function) function = nullptr;
  TEGULA_DRIVER_FUNCTIONS(TEGULA_DECLARE)
#undef TEGULA_DECLARE
  std::string unusable;  // why, or empty
  pid_t process = 0;     // a process that is forked cannot use its parent's driver

  Driver() : process(getpid()) { unusable = load(); }

 private:
  std::string load() {
    const char* given = std::getenv("TEGULA_LIBCUDA");
    const char* name = given != nullptr && *given != 0 ? given : "libcuda.so.1";
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return message("no CUDA driver: ", dlerror());
#define TEGULA_LOAD(function)                                                             \
  function = reinterpret_cast<decltype(function)>(dlsym(library, TEGULA_NAME(function))); \
  if (function == nullptr)                                                                \
    return message("the CUDA driver is too old: it has no ", TEGULA_NAME(function), too_old());
    TEGULA_DRIVER_FUNCTIONS(TEGULA_LOAD)
#undef TEGULA_LOAD
    if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) {
      if (result == CUDA_ERROR_NO_DEVICE) return "the CUDA driver finds no device";
      return message("the CUDA driver does not start: ", text_of(result));
    }
    int version = 0;
    cuDriverGetVersion(&version);
    if (version < CUDA_VERSION / 1000 * 1000) {
      return message("the CUDA driver is too old: it supports CUDA ", version / 1000, ".",
                     version % 1000 / 10, too_old());
    }
    return {};
  }
  static std::string too_old() {
    return message("; this build of tegula needs CUDA ", CUDA_VERSION / 1000,
                   CUDA_VERSION / 1000 == 13 ? " (driver R580 or later)" : "");
  }

 public:
  std::string text_of(CUresult result) const {
    const char *name = nullptr, *text = nullptr;
    cuGetErrorName(result, &name), cuGetErrorString(result, &text);
    return message(name ? name : "an unknown error", text ? ": " : "", text ? text : "");
  }
};

const Driver& driver() {
  static const Driver loaded;
  if (!loaded.unusable.empty()) throw CudaError(loaded.unusable);
  if (loaded.process != getpid()) {
    throw CudaError(
        "CUDA was first used before this process was forked, and cannot be used in it; start "
        "processes by 'spawn', or use CUDA in the children only");
  }
  return loaded;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw CudaError(message(what, " failed: ", driver().text_of(result)));
}

int attribute(CUdevice device, CUdevice_attribute which) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, which, device), "asking what the device is");
  return value;
}

CUdevice handle_of(int device) {
  const int count = device_count();
  if (device < 0 || device >= count) {
    throw ValueError(message("device must lie in [0, ", count, "), got ", device));
  }
  CUdevice handle;
  check(driver().cuDeviceGet(&handle, device), "asking for the device");
  return handle;
}

// A context is current while this lives.
class Current {
 public:
  explicit Current(CUcontext wanted) {
    CUcontext found = nullptr;
    check(driver().cuCtxGetCurrent(&found), "asking for the current context");
    if (found == wanted) return;
    check(driver().cuCtxPushCurrent(wanted), "making the device current");
    pushed_ = true;
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    CUcontext popped;
    if (pushed_) driver().cuCtxPopCurrent(&popped);
  }

 private:
  bool pushed_ = false;
};

bool is_capturing(void* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver().cuStreamIsCapturing(static_cast<CUstream>(stream), &status);
  // Another stream's capture may forbid the question, too.
  return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
         (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

struct Function {
  CUfunction handle = nullptr;
  size_t param_bytes = 0;
};

// A device that has been used.
struct Device {
  CUcontext context = nullptr;
  DeviceFacts facts;
  std::unordered_map<std::string, Function> functions;
  IdFault* fault = nullptr;         // as the host sees it
  IdFault* device_fault = nullptr;  // as kernels do

  Device(int index, void* stream) {
    const CUdevice handle = handle_of(index);
    facts = device_facts(index);
    if (facts.major < kNeededMajor) {
      throw CudaError(message("device ", index, " (", device_name(index),
                              ") has compute capability ", facts.major, ".", facts.minor,
                              "; tegula's kernels need ", kNeededMajor, ".0 or later"));
    }
    check(driver().cuDevicePrimaryCtxRetain(&context, handle), "retaining the device's context");
    const Current current(context);
    if (is_capturing(stream)) {
      throw CudaError(message("device ", index,
                              " is used for the first time while a CUDA graph is being captured; "
                              "call tegula.cuda.warm_up() before"));
    }
    for (int i = 0; i < kFatbinCount; ++i) load_module(kFatbins[i]);
    void* memory = nullptr;
    check(driver().cuMemHostAlloc(&memory, sizeof(IdFault),
                                  CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
          "allocating mapped memory");
    fault = new (memory) IdFault{};
    CUdeviceptr mapped = 0;
    check(driver().cuMemHostGetDevicePointer(&mapped, memory, 0), "mapping memory");
    device_fault = reinterpret_cast<IdFault*>(mapped);
  }

 private:
  void load_module(const void* image) {
    CUmodule module;
    check(driver().cuModuleLoadData(&module, image), "loading kernels");
    unsigned count = 0;
    check(driver().cuModuleGetFunctionCount(&count, module), "counting kernels");
    std::vector<CUfunction> found(count);
    check(driver().cuModuleEnumerateFunctions(found.data(), count, module), "listing kernels");
    for (const CUfunction handle : found) {
      const char* name = nullptr;
      check(driver().cuFuncGetName(&name, handle), "naming a kernel");
      Function function{handle, 0};
      size_t offset = 0;
      check(driver().cuFuncGetParamInfo(handle, 0, &offset, &function.param_bytes),
            "asking for a kernel's parameters");
      int fixed = 0;
      check(driver().cuFuncGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, handle),
            "asking for a kernel's shared memory");
      check(driver().cuFuncSetAttribute(handle, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        facts.shared_bytes - fixed),
            "allowing a kernel its shared memory");
      functions.emplace(name, function);
    }
  }
};

constexpr int kMostDevices = 64;
std::array<std::atomic<Device*>, kMostDevices> g_devices;  // null: not used yet

Device* used_device(int index) {
  return index >= 0 && index < kMostDevices ? g_devices[index].load(std::memory_order_acquire)
                                            : nullptr;
}

Device& device_for(int index, void* stream) {
  if (Device* const known = used_device(index)) {
    driver();  // still the process that loaded it
    return *known;
  }
  handle_of(index);
  if (index >= kMostDevices) throw ValueError(message("device must be below ", kMostDevices));
  static std::mutex loading;
  const std::lock_guard lock(loading);
  if (Device* const known = used_device(index)) return *known;
  auto* const fresh = new Device(index, stream);
  g_devices[index].store(fresh, std::memory_order_release);
  return *fresh;
}

CUcontext context_of(const Place& place) { return used_device(place.device)->context; }

}  // namespace

int device_count() {
  int count = 0;
  check(driver().cuDeviceGetCount(&count), "counting devices");
  return count;
}

std::string device_name(int device) {
  char name[256] = {};
  check(driver().cuDeviceGetName(name, sizeof name - 1, handle_of(device)), "naming the device");
  return name;
}

DeviceFacts device_facts(int device) {
  const CUdevice handle = handle_of(device);
  DeviceFacts facts;
  facts.major = attribute(handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  facts.minor = attribute(handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  facts.processors = attribute(handle, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  facts.shared_bytes = attribute(handle, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  return facts;
}

Place prepared_place(int device, void* stream) {
  const Device& found = device_for(device, stream);
  Place place;
  place.device = device, place.stream = stream;
  place.fault = found.device_fault, place.facts = found.facts;
  return place;
}

std::optional<IdFault> take_id_fault(int device) {
  Device* const found = used_device(device);
  if (found == nullptr) return std::nullopt;
  if (std::atomic_ref(found->fault->found).load(std::memory_order_acquire) == 0) {
    return std::nullopt;
  }
  const IdFault fault = *found->fault;
  // A kernel that comes meanwhile finds `claimed` set, and its fault is the same call's or a later
  // one's: one of them is reported, which is enough.
  std::atomic_ref(found->fault->found).store(0, std::memory_order_relaxed);
  std::atomic_ref(found->fault->claimed).store(0, std::memory_order_release);
  return fault;
}

void synchronize(const Place& place) {
  const Current current(context_of(place));
  check(driver().cuStreamSynchronize(static_cast<CUstream>(place.stream)), "a kernel");
}

void read_back(const Place& place, void* host, const void* device, size_t bytes) {
  const Current current(context_of(place));
  check(driver().cuMemcpyDtoHAsync(host, reinterpret_cast<CUdeviceptr>(device), bytes,
                                   static_cast<CUstream>(place.stream)),
        "copying to the host");
  check(driver().cuStreamSynchronize(static_cast<CUstream>(place.stream)), "a kernel");
}

int device_of_pointer(const void* pointer) {
  int device = -1;
  const CUresult result = driver().cuPointerGetAttribute(
      &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, reinterpret_cast<CUdeviceptr>(pointer));
  return result == CUDA_SUCCESS ? device : -1;
}

void clear(const Place& place, void* data, size_t bytes) {
  if (bytes == 0) return;
  const Current current(context_of(place));
  check(driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(data), 0, bytes,
                                 static_cast<CUstream>(place.stream)),
        "clearing memory");
}

TensorMap encode_tensor_map(const Place& place, const TensorBoxes& boxes) {
  cuuint64_t sizes[kTensorRank], steps[kTensorRank - 1];
  cuuint32_t box[kTensorRank], dense[kTensorRank];
  for (int axis = 0; axis < kTensorRank; ++axis) {
    sizes[axis] = static_cast<cuuint64_t>(boxes.size[axis]);
    if (axis > 0) steps[axis - 1] = static_cast<cuuint64_t>(boxes.step[axis]) * 2;
    box[axis] = static_cast<cuuint32_t>(boxes.box[axis]), dense[axis] = 1;
  }
  const Current current(context_of(place));
  CUtensorMap map;
  check(driver().cuTensorMapEncodeTiled(
            &map,
            boxes.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                           : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            kTensorRank, const_cast<void*>(boxes.data), sizes, steps, box, dense,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "describing an array");
  TensorMap copy;
  static_assert(sizeof copy == sizeof map && alignof(TensorMap) == alignof(CUtensorMap));
  std::memcpy(&copy, &map, sizeof map);
  return copy;
}

void launch_bytes(const Place& place, const std::string& kernel, const LaunchShape& shape,
                  const void* params, size_t bytes) {
  if (shape.blocks == 0) return;
  const Device& device = *used_device(place.device);
  const auto found = device.functions.find(kernel);
  if (found == device.functions.end()) {
    throw CudaError(message("this build of tegula has no kernel ", kernel));
  }
  if (found->second.param_bytes != bytes) {
    throw CudaError(message("kernel ", kernel, " takes ", found->second.param_bytes,
                            " bytes of parameters, not ", bytes));
  }
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  if (shape.blocks > kMostBlocks) {
    throw ValueError(message("the call needs ", shape.blocks, " blocks of threads; at most ",
                             kMostBlocks, " are possible"));
  }
  const Current current(device.context);
  void* arguments[] = {const_cast<void*>(params)};
  check(driver().cuLaunchKernel(found->second.handle, static_cast<unsigned>(shape.blocks), 1, 1,
                                static_cast<unsigned>(shape.threads), 1, 1,
                                static_cast<unsigned>(shape.shared_bytes),
                                static_cast<CUstream>(place.stream), arguments, nullptr),
        kernel.c_str());
}

}  // namespace tegula
