// Modules, functions and launches. A module has every kernel that this library was built with: what
// a fatbin holds is not read.
#include <string.h>

#include <map>
#include <memory>

#include "device_memory.h"
#include "driver.h"
#include "driver_log.h"
#include "state.h"

using namespace cusim;

namespace {

constexpr uint32_t kFatbinMagic = 0xBA55ED50;
constexpr uint32_t kMaxParameterBytes = 32764;
constexpr int kDefaultDynamicBytes = 49152;

struct Function {
  const Kernel* kernel;
  int device;
  int max_dynamic = kDefaultDynamicBytes;
};
struct Module {
  std::vector<std::unique_ptr<Function>> functions;
};
std::vector<std::unique_ptr<Module>> modules;

// Code for an architecture runs on it and on later ones, unless it ends in a letter.
int suitability(const Kernel& kernel, int capability) {
  const int arch = atoi(kernel.arch);
  const bool exact = !isdigit(kernel.arch[strlen(kernel.arch) - 1]);
  if (exact) return arch == capability ? 2 * arch + 1 : -1;
  return arch <= capability ? 2 * arch : -1;
}

std::unique_ptr<Module> make_module(int device) {
  std::map<std::string, const Kernel*> best;
  for (const Kernel* kernel : all_kernels()) {
    const int suits = suitability(*kernel, pretence.capability);
    if (suits < 0) continue;
    const Kernel*& chosen = best[kernel->name];
    if (chosen == nullptr || suitability(*chosen, pretence.capability) < suits) chosen = kernel;
  }
  auto module = std::make_unique<Module>();
  for (const auto& [name, kernel] : best) {
    module->functions.push_back(std::make_unique<Function>(Function{kernel, device}));
  }
  return module;
}

Function* function_of(CUfunction handle) { return reinterpret_cast<Function*>(handle); }
Module* module_of(CUmodule handle) {
  for (const auto& module : modules) {
    if (reinterpret_cast<CUmodule>(module.get()) == handle) return module.get();
  }
  return nullptr;
}

}  // namespace

namespace cusim {

std::vector<const Kernel*>& all_kernels() {
  static std::vector<const Kernel*> kernels;
  return kernels;
}
void register_kernel(const Kernel* kernel) { all_kernels().push_back(kernel); }

}  // namespace cusim

DRIVER_API cuModuleLoadData(CUmodule* handle, const void* image) {
  DRIVER_CALL;
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult refused = refuse_in_capture("cuModuleLoadData")) return refused;
  uint32_t magic;
  memcpy(&magic, image, sizeof magic);
  if (magic != kFatbinMagic) return CUDA_ERROR_INVALID_IMAGE;
  modules.push_back(make_module(current_device()));
  if (modules.back()->functions.empty()) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  *handle = reinterpret_cast<CUmodule>(modules.back().get());
  return CUDA_SUCCESS;
}

DRIVER_API cuModuleUnload(CUmodule handle) {
  DRIVER_CALL;
  return module_of(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

DRIVER_API cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
  DRIVER_CALL;
  const Module* module = module_of(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *count = unsigned(module->functions.size());
  return CUDA_SUCCESS;
}

DRIVER_API cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule handle) {
  DRIVER_CALL;
  const Module* module = module_of(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (unsigned i = 0; i < count && i < module->functions.size(); ++i) {
    functions[i] = reinterpret_cast<CUfunction>(module->functions[i].get());
  }
  return CUDA_SUCCESS;
}

DRIVER_API cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  DRIVER_CALL;
  const Module* module = module_of(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& found : module->functions) {
    if (strcmp(found->kernel->name, name) == 0) {
      *function = reinterpret_cast<CUfunction>(found.get());
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_NOT_FOUND;
}

DRIVER_API cuFuncGetName(const char** name, CUfunction function) {
  DRIVER_CALL;
  *name = function_of(function)->kernel->name;
  return CUDA_SUCCESS;
}

DRIVER_API cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  DRIVER_CALL;
  const Kernel* kernel = function_of(function)->kernel;
  if (index >= kernel->parameter_count) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->parameters[index].offset;
  if (size != nullptr) *size = kernel->parameters[index].size;
  return CUDA_SUCCESS;
}

DRIVER_API cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  DRIVER_CALL;
  const Function* found = function_of(function);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = int(found->kernel->max_threads); break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = int(found->kernel->static_shared_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = found->max_dynamic; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = atoi(found->kernel->arch); break;
    default:
      return error(CUDA_ERROR_INVALID_VALUE, "the simulator knows no such function attribute");
  }
  return CUDA_SUCCESS;
}

DRIVER_API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  DRIVER_CALL;
  Function* found = function_of(function);
  if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  const int most = shared_bytes_per_block() - int(found->kernel->static_shared_bytes);
  if (value < 0 || value > most) {
    return error(CUDA_ERROR_INVALID_VALUE,
                 std::to_string(value) + " bytes of shared memory of " + std::to_string(most));
  }
  found->max_dynamic = value;
  return CUDA_SUCCESS;
}

// --- launches ----------------------------------------------------------------------------------
namespace {

const char* wrong_shape(const Function& function, Dim3 grid, Dim3 threads, unsigned shared) {
  const Kernel& kernel = *function.kernel;
  const uint64_t count = uint64_t(threads.x) * threads.y * threads.z;
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  if (blocks == 0 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) {
    return "the grid is empty or too large";
  }
  if (blocks > 1u << 28) return "more blocks than the simulator can run";
  if (count == 0 || count > 1024 || threads.z > 64) return "a block of no or too many threads";
  if (count > kernel.max_threads) return "more threads than the kernel's __launch_bounds__";
  if (shared + kernel.static_shared_bytes > uint32_t(kDefaultDynamicBytes) &&
      shared > uint32_t(function.max_dynamic)) {
    return "more dynamic shared memory than cuFuncSetAttribute allowed";
  }
  if (shared > uint32_t(std::max(function.max_dynamic, kDefaultDynamicBytes)) ||
      shared + kernel.static_shared_bytes > uint32_t(shared_bytes_per_block())) {
    return "more shared memory than cuFuncSetAttribute allowed";
  }
  return nullptr;
}

// The parameters one after the other, as a kernel finds them.
std::vector<char> pack(const Kernel& kernel, void** values, void** extra) {
  std::vector<char> packed;
  if (kernel.parameter_count > 0) {
    const Parameter& last = kernel.parameters[kernel.parameter_count - 1];
    packed.resize(last.offset + last.size);
  }
  if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t bytes = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
      if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<size_t*>(extra[1]);
    }
    memcpy(packed.data(), buffer, std::min(bytes, packed.size()));
    return packed;
  }
  for (uint32_t i = 0; i < kernel.parameter_count; ++i) {
    memcpy(packed.data() + kernel.parameters[i].offset, values[i], kernel.parameters[i].size);
  }
  return packed;
}

CUresult run(const Kernel& kernel, Dim3 grid, Dim3 threads, unsigned shared, int device,
             const std::vector<char>& packed) {
  alignas(128) static char parameters[kMaxParameterBytes + 4];
  memcpy(parameters, packed.data(), packed.size());
  const std::string wrong =
      launch(kernel, grid, threads, shared, parameters, uint32_t(packed.size()), device);
  if (wrong.empty()) return CUDA_SUCCESS;
  return error(CUDA_ERROR_LAUNCH_FAILED, std::string(kernel.name) + ": " + wrong);
}

}  // namespace

DRIVER_API cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          CUstream stream, void** values, void** extra) {
  DRIVER_CALL;
  const Function& function = *function_of(handle);
  const Kernel& kernel = *function.kernel;
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (device != function.device) {
    return error(CUDA_ERROR_INVALID_HANDLE, std::string(kernel.name) + " was loaded on device " +
                                                std::to_string(function.device) +
                                                ", and the context is of device " +
                                                std::to_string(device));
  }
  const Dim3 grid{grid_x, grid_y, grid_z}, threads{block_x, block_y, block_z};
  if (const char* wrong = wrong_shape(function, grid, threads, shared)) {
    return error(CUDA_ERROR_INVALID_VALUE, std::string(kernel.name) + ": " + wrong);
  }
  log_launch({kernel.name,
              kernel.arch,
              {grid_x, grid_y, grid_z},
              {block_x, block_y, block_z},
              shared,
              device,
              reinterpret_cast<uint64_t>(stream)});
  return run_on_stream([=, &kernel, packed = pack(kernel, values, extra)] {
    return run(kernel, grid, threads, shared, device, packed);
  });
}
