#include "exchange.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <vector>

namespace tegula {

DLDataType dlpack_dtype(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * item_size(dtype));
  const uint8_t code = dtype == DType::kBool       ? kDLBool
                       : dtype == DType::kBFloat16 ? kDLBfloat
                       : is_float(dtype)           ? kDLFloat
                       : dtype < DType::kUInt8     ? kDLInt
                                                   : kDLUInt;
  return {code, bits, 1};
}

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

namespace {

constexpr const char* kCapsule = "dlpack_exchange_api";

const DLPackExchangeAPI* look_up_exchange(PyTypeObject* type) {
  py::object capsule = py::getattr(py::handle(reinterpret_cast<PyObject*>(type)),
                                   "__dlpack_c_exchange_api__", py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kCapsule)) return nullptr;
  auto* header =
      static_cast<DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  while (header != nullptr && header->version.major != kDLPackMajor) header = header->prev_api;
  const auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
  return api != nullptr && api->dltensor_from_py_object_no_sync != nullptr ? api : nullptr;
}

}  // namespace

// Remembered for torch.Tensor itself; other types come and go.
const DLPackExchangeAPI* exchange(PyTypeObject* type) {
  if (type != tensor_type()) return look_up_exchange(type);
  static const DLPackExchangeAPI* const known = look_up_exchange(type);
  return known;
}

bool is_tensor(py::handle object) {
  PyTypeObject* const type = tensor_type();
  return type != nullptr && PyObject_TypeCheck(object.ptr(), type);
}

std::string text(const py::object& object) { return py::cast<std::string>(py::str(object)); }

void refuse_tensor(py::handle tensor, const char* name, std::string why) {
  why = why.substr(0, why.find('\n'));
  const py::object type = py::type::handle_of(tensor).attr("__name__");
  throw NotPlainError(
      message(name, " is not a plain tensor that can be read here: ", text(type), " ", why));
}

void check_strided(py::handle tensor, const char* name) {
  const std::string layout = text(tensor.attr("layout"));
  if (layout != "torch.strided") refuse_tensor(tensor, name, "of layout " + layout);
  if (py::cast<bool>(tensor.attr("is_nested"))) refuse_tensor(tensor, name, "is nested");
  if (py::cast<bool>(tensor.attr("is_quantized"))) refuse_tensor(tensor, name, "is quantized");
}

void refuse_dtype(py::handle tensor, const char* name) {
  throw TypeError(
      message(name, " has dtype ", text(tensor.attr("dtype")), ", which is not supported"));
}

namespace {

void check_rank(int64_t rank) {
  if (rank <= kMaxRank) return;
  throw ValueError(message("arrays may have at most ", kMaxRank, " axes, got ", rank));
}

}  // namespace

View view_of(const DLTensor& given, py::handle tensor, const char* name) {
  View view;
  if (!find_dtype(given.dtype, view.dtype)) refuse_dtype(tensor, name);
  check_rank(given.ndim);
  view.rank = given.ndim;
  std::copy(given.shape, given.shape + given.ndim, view.shape);
  if (given.strides != nullptr) {
    std::copy(given.strides, given.strides + given.ndim, view.stride);
  } else {  // contiguous
    int64_t step = 1;
    for (int axis = given.ndim - 1; axis >= 0; --axis) {
      view.stride[axis] = step;
      step *= given.shape[axis];
    }
  }
  if (given.data != nullptr) view.data = static_cast<char*>(given.data) + given.byte_offset;
  return view;
}

View view_by_attributes(py::handle tensor, const char* name) {
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
    refuse_tensor(tensor, name, error.what());
  }
  return view;
}

void check_not_negated(py::handle tensor, const char* name) {
  static PyObject* const kIsNeg =
      py::object(py::handle(reinterpret_cast<PyObject*>(tensor_type())).attr("is_neg"))
          .release()
          .ptr();
  const auto negated = py::reinterpret_steal<py::object>(PyObject_CallOneArg(kIsNeg, tensor.ptr()));
  if (!negated) throw py::error_already_set();
  if (negated.ptr() != Py_False) {
    throw NotPlainError(
        message(name, " is a lazily negated view; call ", name, ".resolve_neg() first"));
  }
}

}  // namespace tegula
