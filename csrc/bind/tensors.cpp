#include "tensors.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "../base/result_pool.h"
#include "arrays.h"

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
  void* current_work_stream;
};
enum DLDeviceType : int32_t { kDLCPU = 1 };
enum DLDataTypeCode : uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };

constexpr uint32_t kMajor = 1;
constexpr const char* kCapsule = "dlpack_exchange_api";

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
  throw NotPlainError(
      message(name, " is not a plain tensor that can be read here: ", text(type), " ", why));
}

void check_device(py::handle tensor, const char* name) {
  const py::object device = tensor.attr("device");
  const std::string kind = text(device.attr("type"));
  if (kind == "cpu") return;
  throw NotPlainError(message(name, " is on device '", text(device), "', expected 'cpu'",
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

// --- Fresh tensors ---------------------------------------------------------------------------

// What a fresh tensor owns: small memory lies behind this, in one block with it.
struct Owned {
  DLManagedTensorVersioned tensor;
  ResultBlock large;
  int64_t shape[kMaxRank], stride[kMaxRank];

  static constexpr size_t kAlign = 64;
  static constexpr size_t padded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  // `view` says dtype, shape and strides, and gets the memory.
  static Owned* make(View& view) {
    const auto bytes = static_cast<size_t>(view.count() * item_size(view.dtype));
    ResultBlock block{nullptr, 0, false};
    if (bytes >= kPooledBytes) block = take_result_block(bytes);
    const size_t head = padded(sizeof(Owned));
    void* const begin = std::aligned_alloc(kAlign, block.data ? head : head + padded(bytes));
    if (begin == nullptr) {
      if (block.data) give_result_block(block);
      throw std::bad_alloc();
    }
    view.data = block.data ? block.data : static_cast<char*>(begin) + head;
    auto* const owned = new (begin) Owned;
    owned->large = block;
    std::copy(view.shape, view.shape + view.rank, owned->shape);
    std::copy(view.stride, view.stride + view.rank, owned->stride);
    owned->tensor.version = {kMajor, 0};
    owned->tensor.manager_ctx = owned;
    owned->tensor.deleter = [](DLManagedTensorVersioned* tensor) {
      auto* const dead = static_cast<Owned*>(tensor->manager_ctx);
      if (dead->large.data) give_result_block(dead->large);
      std::free(dead);
    };
    owned->tensor.flags = 0;
    owned->tensor.dl_tensor = {view.data,    {kDLCPU, 0},   view.rank, dlpack_dtype(view.dtype),
                               owned->shape, owned->stride, 0};
    return owned;
  }
};

// By the functions that every torch has.
py::object made_by_functions(View& view) {
  const py::array bytes =
      new_array(py::dtype::of<uint8_t>(), {view.count() * item_size(view.dtype)});
  view.data = const_cast<void*>(bytes.data());
  return as_tensor(bytes, view.dtype)
      .attr("as_strided")(std::vector<int64_t>(view.shape, view.shape + view.rank),
                          std::vector<int64_t>(view.stride, view.stride + view.rank));
}

// Whether every element between the first and the last is the tensor's, and only once.
bool without_gaps(const View& view) {
  if (view.count() == 0) return true;
  int64_t expected = 1;
  for (bool found = true; found;) {  // the axis that steps over those found so far
    found = false;
    for (int axis = 0; axis < view.rank && !found; ++axis) {
      found = view.shape[axis] > 1 && view.stride[axis] == expected;
      if (found) expected *= view.shape[axis];
    }
  }
  return expected == view.count();
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
    throw NotPlainError(
        message(name, " is a lazily negated view; call ", name, ".resolve_neg() first"));
  }
  return view;
}

py::object new_tensor(View& view) {
  const DLPackExchangeAPI* api = exchange(tensor_type());
  if (api == nullptr || api->managed_tensor_to_py_object_no_sync == nullptr) {
    return made_by_functions(view);
  }
  void* object = nullptr;
  if (api->managed_tensor_to_py_object_no_sync(&Owned::make(view)->tensor, &object) != 0) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

py::object as_tensor(const py::array& array, DType dtype) {
  const py::module_ torch = py::module_::import("torch");
  return torch.attr("from_numpy")(array).attr("view")(torch.attr(name_of(dtype)));
}

void set_strides_like(View& view, const View& model) {
  if (without_gaps(model)) {
    std::copy(model.stride, model.stride + model.rank, view.stride);
    return;
  }
  // Where strides do not say which axis is the inner one, the later axis is.
  const auto inner = [&](int a, int b) {
    if (model.stride[a] == 0 || model.stride[b] == 0) return 0;
    if (model.stride[a] != model.stride[b]) return model.stride[a] < model.stride[b] ? 1 : -1;
    return model.shape[a] > model.shape[b] ? -1 : 0;
  };
  int order[kMaxRank];  // from the inside
  for (int i = 0; i < model.rank; ++i) order[i] = model.rank - 1 - i;
  for (int i = 1; i < model.rank; ++i) {
    int at = i;
    for (int before = i - 1; before >= 0; --before) {
      const int told = inner(order[before], order[at]);
      if (told > 0) break;
      if (told < 0) std::swap(order[before], order[at]), at = before;
    }
  }
  int64_t step = 1;
  for (int i = 0; i < model.rank; ++i) {
    view.stride[order[i]] = step;
    step *= std::max<int64_t>(1, model.shape[order[i]]);
  }
}

}  // namespace tegula
