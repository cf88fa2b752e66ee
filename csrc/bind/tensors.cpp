#include "tensors.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tegula {
namespace {

// --- DLPack, as far as it is needed here: https://dmlc.github.io/dlpack/latest/c_api.html ---

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
struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  DLPackExchangeAPIHeader* prev_api;
};
struct DLPackExchangeAPI {
  DLPackExchangeAPIHeader header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);  // may be null
  void* current_work_stream;
};
enum DLDeviceType : int32_t { kDLCPU = 1 };
enum DLDataTypeCode : uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };

constexpr uint32_t kMajor = 1;
constexpr const char* kCapsule = "dlpack_exchange_api";

bool find_dtype(DLDataType given, DType& found) {
  if (given.lanes != 1) return false;
  switch (given.code) {
    case kDLFloat:
      switch (given.bits) {
        case 64: found = DType::kFloat64; return true;
        case 32: found = DType::kFloat32; return true;
        case 16: found = DType::kFloat16; return true;
      }
      return false;
    case kDLBfloat: found = DType::kBFloat16; return given.bits == 16;
    case kDLBool: found = DType::kBool; return given.bits == 8;
    case kDLInt:
    case kDLUInt: {
      const bool is_signed = given.code == kDLInt;
      switch (given.bits) {
        case 8: found = is_signed ? DType::kInt8 : DType::kUInt8; return true;
        case 16: found = is_signed ? DType::kInt16 : DType::kUInt16; return true;
        case 32: found = is_signed ? DType::kInt32 : DType::kUInt32; return true;
        case 64: found = is_signed ? DType::kInt64 : DType::kUInt64; return true;
      }
      return false;
    }
  }
  return false;
}

// torch.Tensor once somebody has imported torch; a type that is never freed.
PyTypeObject* tensor_type() {
  static PyTypeObject* known = nullptr;
  if (known != nullptr) return known;
  const auto modules = py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict());
  if (!modules.contains("torch")) return nullptr;
  // While torch is being imported it has no Tensor yet.
  const py::object type = py::getattr(modules["torch"], "Tensor", py::none());
  if (PyType_Check(type.ptr())) known = reinterpret_cast<PyTypeObject*>(type.ptr());
  return known;
}

// What the type says of itself, or null: torch before 2.10 does not.
const DLPackExchangeAPI* look_up_exchange(PyTypeObject* type) {
  py::object capsule = py::getattr(py::handle(reinterpret_cast<PyObject*>(type)),
                                   "__dlpack_c_exchange_api__", py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kCapsule)) return nullptr;
  auto* header =
      static_cast<DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  while (header != nullptr && header->version.major != kMajor) header = header->prev_api;
  const auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
  return api != nullptr && api->dltensor_from_py_object_no_sync != nullptr ? api : nullptr;
}

// Remembered for torch.Tensor itself; other types come and go.
const DLPackExchangeAPI* exchange(PyTypeObject* type) {
  if (type != tensor_type()) return look_up_exchange(type);
  static const DLPackExchangeAPI* const known = look_up_exchange(type);
  return known;
}

std::string text(const py::object& object) { return py::cast<std::string>(py::str(object)); }

[[noreturn]] void refuse(py::handle tensor, const char* name, std::string why) {
  why = why.substr(0, why.find('\n'));
  const py::object type = py::type::handle_of(tensor).attr("__name__");
  throw TypeError(
      message(name, " is not a plain tensor that can be read here: ", text(type), " ", why));
}

void check_device(py::handle tensor, const char* name) {
  const py::object device = tensor.attr("device");
  const std::string kind = text(device.attr("type"));
  if (kind == "cpu") return;
  throw TypeError(message(name, " is on device '", text(device), "', expected 'cpu'",
                          kind == "cuda" ? ": this is no CUDA build of tegula" : ""));
}

// TypeError with what a tensor says about itself that keeps it from being read.
void check_plain(py::handle tensor, const char* name) {
  check_device(tensor, name);
  const std::string layout = text(tensor.attr("layout"));
  if (layout != "torch.strided") refuse(tensor, name, "of layout " + layout);
  if (py::cast<bool>(tensor.attr("is_nested"))) refuse(tensor, name, "is nested");
  if (py::cast<bool>(tensor.attr("is_quantized"))) refuse(tensor, name, "is quantized");
}

void check_rank(int64_t rank) {
  if (rank <= kMaxRank) return;
  throw ValueError(message("arrays may have at most ", kMaxRank, " axes, got ", rank));
}

[[noreturn]] void refuse_dtype(py::handle tensor, const char* name) {
  throw TypeError(
      message(name, " has dtype ", text(tensor.attr("dtype")), ", which is not supported"));
}

View by_exchange(const DLPackExchangeAPI& api, py::handle tensor, const char* name) {
  DLTensor given;
  if (api.dltensor_from_py_object_no_sync(tensor.ptr(), &given) != 0) {
    py::error_already_set error;
    if (!error.matches(PyExc_Exception)) throw error;  // KeyboardInterrupt and its kind
    check_plain(tensor, name);
    refuse(tensor, name, error.what());
  }
  View view;
  if (given.device.type != kDLCPU) check_device(tensor, name);
  if (!find_dtype(given.dtype, view.dtype)) refuse_dtype(tensor, name);
  check_rank(given.ndim);
  view.rank = given.ndim;
  std::copy(given.shape, given.shape + given.ndim, view.shape);
  std::copy(given.strides, given.strides + given.ndim, view.stride);
  if (given.data != nullptr) view.data = static_cast<char*>(given.data) + given.byte_offset;
  return view;
}

// By the attributes that every torch has.
View by_attributes(py::handle tensor, const char* name) {
  check_plain(tensor, name);
  View view;
  const std::string dtype = text(tensor.attr("dtype"));
  bool known = false;
  for (int code = 0; code <= static_cast<int>(DType::kUInt64) && !known; ++code) {
    view.dtype = static_cast<DType>(code);
    known = dtype == std::string("torch.") + name_of(view.dtype);
  }
  if (!known) refuse_dtype(tensor, name);
  try {
    const auto shape = py::cast<std::vector<int64_t>>(tensor.attr("shape"));
    const auto stride = py::cast<std::vector<int64_t>>(tensor.attr("stride")());
    check_rank(static_cast<int64_t>(shape.size()));
    view.rank = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape);
    std::copy(stride.begin(), stride.end(), view.stride);
    view.data = reinterpret_cast<void*>(py::cast<uintptr_t>(tensor.attr("data_ptr")()));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    refuse(tensor, name, error.what());
  }
  return view;
}

}  // namespace

bool is_tensor(py::handle object) {
  PyTypeObject* const type = tensor_type();
  return type != nullptr && PyObject_TypeCheck(object.ptr(), type);
}

View tensor_view(py::handle tensor, const char* name) {
  const DLPackExchangeAPI* api = exchange(Py_TYPE(tensor.ptr()));
  View view = api != nullptr ? by_exchange(*api, tensor, name) : by_attributes(tensor, name);
  if (view.data == nullptr) {
    // Fake, functional and distributed tensors export shapes without memory.
    if (view.count() > 0) refuse(tensor, name, "has no memory of its own");
    alignas(16) static char nothing[16];
    view.data = nothing;
  }
  // The memory of such a view holds the numbers with the other sign.
  static PyObject* const kIsNeg =
      py::object(py::handle(reinterpret_cast<PyObject*>(tensor_type())).attr("is_neg"))
          .release()
          .ptr();
  const auto negated = py::reinterpret_steal<py::object>(PyObject_CallOneArg(kIsNeg, tensor.ptr()));
  if (!negated) throw py::error_already_set();
  if (negated.ptr() != Py_False) {
    throw TypeError(
        message(name, " is a lazily negated view; call ", name, ".resolve_neg() first"));
  }
  return view;
}

}  // namespace tegula
