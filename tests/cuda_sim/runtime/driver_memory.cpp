// Memory of the driver: allocation, copies, what a pointer is, tensor maps.
#include <string.h>

#include "device_memory.h"
#include "driver.h"
#include "tensor_map.h"

// cuda.h maps the names of some functions to newer versions.
#undef cuMemAlloc
#undef cuMemFree
#undef cuMemcpyHtoD
#undef cuMemcpyDtoH

using namespace cusim;

namespace {

char* host_address(CUdeviceptr pointer) { return reinterpret_cast<char*>(pointer); }

CUresult no_such_memory(CUdeviceptr pointer, size_t bytes) {
  const Allocation* close = nearest(host_address(pointer));
  std::string text = std::to_string(bytes) + " bytes at ";
  text += close == nullptr
              ? "an address that no buffer is near"
              : "byte " + std::to_string(int64_t(host_address(pointer) - close->start)) +
                    " of buffer " + std::to_string(close->number) + ", which has " +
                    std::to_string(close->bytes);
  return error(CUDA_ERROR_INVALID_VALUE, text);
}

// The allocation that holds all of the bytes.
const Allocation* whole(CUdeviceptr pointer, size_t bytes) {
  const Allocation* found = find(host_address(pointer));
  if (found == nullptr || host_address(pointer) + bytes > found->start + found->bytes)
    return nullptr;
  return found;
}

CUresult allocate_for(CUdeviceptr* pointer, size_t bytes, int device) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  char* start = allocate(bytes, device);
  if (start == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = reinterpret_cast<CUdeviceptr>(start);
  return CUDA_SUCCESS;
}

CUresult copy_to_device(CUdeviceptr to, const void* from, size_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  const Allocation* target = whole(to, bytes);
  if (target == nullptr) return no_such_memory(to, bytes);
  memcpy(host_address(to), from, bytes);
  mark_written(*target, host_address(to), bytes);
  return CUDA_SUCCESS;
}

CUresult copy_to_host(void* to, CUdeviceptr from, size_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  const Allocation* source = whole(from, bytes);
  if (source == nullptr) return no_such_memory(from, bytes);
  memcpy(to, host_address(from), bytes);
  const size_t unwritten = count_unwritten(*source, host_address(from), bytes);
  if (unwritten == 0) return CUDA_SUCCESS;
  return error(CUDA_ERROR_ILLEGAL_STATE,
               std::to_string(unwritten) + " of " + std::to_string(bytes) + " bytes of buffer " +
                   std::to_string(source->number) + " were never written");
}

CUresult fill(CUdeviceptr to, unsigned char value, size_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  const Allocation* target = whole(to, bytes);
  if (target == nullptr) return no_such_memory(to, bytes);
  memset(host_address(to), value, bytes);
  mark_written(*target, host_address(to), bytes);
  return CUDA_SUCCESS;
}

}  // namespace

#define NEED_CONTEXT \
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT
#define NO_CAPTURE(name) \
  if (const CUresult refused = refuse_in_capture(name)) return refused

DRIVER_API cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  DRIVER_CALL;
  NEED_CONTEXT;
  NO_CAPTURE("cuMemAlloc");
  return allocate_for(pointer, bytes, current_device());
}

DRIVER_API cuMemFree_v2(CUdeviceptr pointer) {
  DRIVER_CALL;
  NO_CAPTURE("cuMemFree");
  if (pointer == 0) return CUDA_SUCCESS;
  return release(host_address(pointer)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_API cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  DRIVER_CALL;
  NEED_CONTEXT;
  NO_CAPTURE("cuMemHostAlloc");
  return allocate_for(reinterpret_cast<CUdeviceptr*>(pointer), bytes, kHostArena);
}

DRIVER_API cuMemFreeHost(void* pointer) {
  DRIVER_CALL;
  NO_CAPTURE("cuMemFreeHost");
  return release(static_cast<char*>(pointer)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_API cuMemHostGetDevicePointer_v2(CUdeviceptr* pointer, void* host, unsigned flags) {
  DRIVER_CALL;
  NEED_CONTEXT;
  const Allocation* found = find(host);
  if (flags != 0 || found == nullptr || found->device != kHostArena)
    return CUDA_ERROR_INVALID_VALUE;
  *pointer = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

DRIVER_API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  DRIVER_CALL;
  NEED_CONTEXT;
  NO_CAPTURE("cuMemcpyHtoD");
  return copy_to_device(to, from, bytes);
}

DRIVER_API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  DRIVER_CALL;
  NEED_CONTEXT;
  NO_CAPTURE("cuMemcpyDtoH");
  return copy_to_host(to, from, bytes);
}

// The bytes are taken at the call, as they are from pageable memory.
DRIVER_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
  DRIVER_CALL;
  NEED_CONTEXT;
  const char* start = static_cast<const char*>(from);
  return run_on_stream([to, bytes, kept = std::vector<char>(start, start + bytes)] {
    return copy_to_device(to, kept.data(), bytes);
  });
}

DRIVER_API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream) {
  DRIVER_CALL;
  NEED_CONTEXT;
  return run_on_stream([=] { return copy_to_host(to, from, bytes); });
}

DRIVER_API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
  DRIVER_CALL;
  NEED_CONTEXT;
  NO_CAPTURE("cuMemsetD8");
  return fill(to, value, bytes);
}

DRIVER_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream) {
  DRIVER_CALL;
  NEED_CONTEXT;
  return run_on_stream([=] { return fill(to, value, bytes); });
}

DRIVER_API cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  DRIVER_CALL;
  const Allocation* found = find(host_address(pointer));
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool pinned = found->device == kHostArena;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = pinned ? 0 : found->device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<CUmemorytype*>(value) = pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(value) = pointer;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(value) = reinterpret_cast<CUdeviceptr>(found->start);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(value) = found->bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(value) = 0; return CUDA_SUCCESS;
    default:
      return error(CUDA_ERROR_INVALID_VALUE, "the simulator knows no such pointer attribute");
  }
}

// --- streams -----------------------------------------------------------------------------------
DRIVER_API cuStreamSynchronize(CUstream) {
  DRIVER_CALL;
  NEED_CONTEXT;
  return refuse_in_capture("cuStreamSynchronize");
}

DRIVER_API cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  DRIVER_CALL;
  NEED_CONTEXT;
  *status = pretence.capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

// --- tensor maps -------------------------------------------------------------------------------
DRIVER_API cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                  void* base, const cuuint64_t* sizes, const cuuint64_t* strides,
                                  const cuuint32_t* box, const cuuint32_t* element_strides,
                                  CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  DRIVER_CALL;
  const TensorMapArguments arguments{
      int(type),       rank,         base,     sizes, strides, box, element_strides,
      int(interleave), int(swizzle), int(fill)};
  const char* wrong = encode_tensor_map(arguments, map);
  return wrong == nullptr ? CUDA_SUCCESS : error(CUDA_ERROR_INVALID_VALUE, wrong);
}
