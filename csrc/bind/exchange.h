// DLPack, as far as it is needed here: https://dmlc.github.io/dlpack/latest/c_api.html
// Nothing of torch is imported, linked or included: a tensor describes itself through the C
// functions of the exchange API, or its attributes.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "../base/check.h"
#include "../base/view.h"

namespace tegula {

namespace py = pybind11;

struct DLPackVersion {
  uint32_t major, minor;
};
struct DLDevice {
  int32_t type, id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};
struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  DLPackExchangeAPIHeader* prev_api;
};
struct DLPackExchangeAPI {
  DLPackExchangeAPIHeader header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor, void** out);
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);  // may be null
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
};
enum DLDeviceType : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAManaged = 13 };
enum DLDataTypeCode : uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };

inline constexpr uint32_t kDLPackMajor = 1;

DLDataType dlpack_dtype(DType dtype);
bool find_dtype(DLDataType given, DType& found);

// torch.Tensor once somebody has imported torch, or else null; a type that is never freed.
PyTypeObject* tensor_type();
// Parameters and other subclasses of torch.Tensor count. Costs a comparison of types as long
// as nobody has imported torch.
bool is_tensor(py::handle object);

// What a type of tensors says of itself, or null: torch before 2.10 does not.
const DLPackExchangeAPI* exchange(PyTypeObject* type);

std::string text(const py::object& object);

// NotPlainError with what a tensor says about itself that keeps it from being read.
[[noreturn]] void refuse_tensor(py::handle tensor, const char* name, std::string why);
void check_strided(py::handle tensor, const char* name);
[[noreturn]] void refuse_dtype(py::handle tensor, const char* name);

// The view of what an exchange API or a DLPack capsule told.
View view_of(const DLTensor& given, py::handle tensor, const char* name);
// By the attributes that every torch has: of a tensor that passed check_strided.
View view_by_attributes(py::handle tensor, const char* name);
// NotPlainError for a lazily negated view, whose memory holds the numbers with the other sign.
void check_not_negated(py::handle tensor, const char* name);

}  // namespace tegula
