#include <pybind11/stl.h>

#include <algorithm>

#include "../../cuda/driver.h"
#include "../exchange.h"
#include "device_arrays.h"

namespace tegula {
namespace {

constexpr uintptr_t kLegacyStream = 1;  // CU_STREAM_LEGACY, and DLPack's number for it

bool is_cuda(int32_t device_type) {
  return device_type == kDLCUDA || device_type == kDLCUDAManaged;
}

// A tensor's device, or that of another array with DLPack's methods; or false.
bool find_device(py::handle array, int32_t& type, int32_t& id) {
  if (!py::hasattr(array, "__dlpack_device__")) return false;
  const auto device = py::cast<py::tuple>(array.attr("__dlpack_device__")());
  type = py::cast<int32_t>(py::int_(device[0])), id = py::cast<int32_t>(device[1]);
  return true;
}

// --- torch tensors --------------------------------------------------------------------------

[[noreturn]] void refuse_device(py::handle tensor, const char* name) {
  throw NotPlainError(
      message(name, " is on device '", text(tensor.attr("device")), "', expected a CUDA device"));
}

struct Looked {
  View view;
  int32_t device = 0;
};

Looked look_at_tensor(py::handle tensor, const char* name) {
  Looked found;
  const DLPackExchangeAPI* const api = exchange(Py_TYPE(tensor.ptr()));
  DLTensor given;
  if (api != nullptr && api->dltensor_from_py_object_no_sync(tensor.ptr(), &given) == 0) {
    if (!is_cuda(given.device.type)) refuse_device(tensor, name);
    found.device = given.device.id;
    found.view = view_of(given, tensor, name);
  } else {
    if (api != nullptr) PyErr_Clear();
    if (!py::cast<bool>(tensor.attr("is_cuda"))) refuse_device(tensor, name);
    check_strided(tensor, name);
    found.device = py::cast<int32_t>(tensor.attr("get_device")());
    found.view = view_by_attributes(tensor, name);
  }
  if (found.view.data == nullptr && found.view.count() > 0) {
    refuse_tensor(tensor, name, "has no memory of its own");
  }
  check_not_negated(tensor, name);
  return found;
}

// --- arrays with DLPack's methods -----------------------------------------------------------

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};
constexpr uint64_t kReadOnly = 1;

// The stream that the array's library works on, as a number of DLPack.
uintptr_t stream_of_library(py::handle array) {
  const std::string module = text(py::type::handle_of(array).attr("__module__"));
  if (module.substr(0, module.find('.')) != "cupy") return kLegacyStream;
  const py::object stream = py::module_::import("cupy").attr("cuda").attr("get_current_stream")();
  const auto number = py::cast<uintptr_t>(stream.attr("ptr"));
  return number == 0 ? kLegacyStream : number;
}

// What a capsule of DLPack holds. It owns the memory for as long as it lives.
struct Capsule {
  py::object held;
  DLTensor* tensor = nullptr;
  bool read_only = false;
};

Capsule capsule_of(py::handle array, const char* name) {
  const py::object stream = py::int_(stream_of_library(array));
  Capsule found;
  try {
    found.held = array.attr("__dlpack__")(py::arg("stream") = stream,
                                          py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {  // from before version 1
    if (!error.matches(PyExc_TypeError)) throw;
    found.held = array.attr("__dlpack__")(py::arg("stream") = stream);
  }
  PyObject* const capsule = found.held.ptr();
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    auto* const managed =
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    found.tensor = &managed->dl_tensor;
    found.read_only = (managed->flags & kReadOnly) != 0;
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    found.tensor =
        &static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"))->dl_tensor;
  } else {
    throw TypeError(message(name, " gives no DLPack capsule that can be read here"));
  }
  return found;
}

struct LookedAt : Looked {
  py::object held;
  bool read_only = false;
};

// An empty array gets an address too, so that its View says that it is there.
void give_address(View& view) {
  alignas(16) static char nothing[16];
  if (view.data == nullptr) view.data = nothing;
}

LookedAt look(py::handle array, const char* name) {
  LookedAt found;
  if (is_tensor(array)) {
    static_cast<Looked&>(found) = look_at_tensor(array, name);
    give_address(found.view);
    return found;
  }
  int32_t type = 0, id = 0;
  if (!find_device(array, type, id) || !is_cuda(type)) {
    throw TypeError(message(name, " must be an array on a CUDA device, got ", kind_of(array)));
  }
  Capsule capsule = capsule_of(array, name);
  found.view = view_of(*capsule.tensor, array, name);
  found.device = id;
  found.held = std::move(capsule.held), found.read_only = capsule.read_only;
  give_address(found.view);
  return found;
}

int32_t device_of(py::handle array) {
  if (is_tensor(array)) return py::cast<int32_t>(array.attr("get_device")());
  int32_t type = 0, id = 0;
  find_device(array, type, id);
  return id;
}

uintptr_t stream_of(py::handle array, int device) {
  if (!is_tensor(array)) return stream_of_library(array);
  const DLPackExchangeAPI* const api = exchange(Py_TYPE(array.ptr()));
  if (api != nullptr && api->current_work_stream != nullptr) {
    void* stream = nullptr;
    if (api->current_work_stream(kDLCUDA, device, &stream) == 0) {
      return reinterpret_cast<uintptr_t>(stream);
    }
    PyErr_Clear();
  }
  const py::object cuda = py::module_::import("torch").attr("cuda");
  return py::cast<uintptr_t>(cuda.attr("current_stream")(device).attr("cuda_stream"));
}

py::object torch_dtype(DType dtype) { return py::module_::import("torch").attr(name_of(dtype)); }

// A fresh array of another library than torch: contiguous.
py::object new_by_namespace(py::handle like, DType dtype, DType likes_dtype,
                            const std::vector<int64_t>& shape) {
  const py::object library = like.attr("__array_namespace__")();
  const py::object type = dtype == likes_dtype ? py::object(like.attr("dtype"))
                                               : py::object(library.attr(name_of(dtype)));
  return library.attr("empty")(py::tuple(py::cast(shape)), py::arg("dtype") = type,
                               py::arg("device") = like.attr("device"));
}

}  // namespace

// --- arrays.h ---------------------------------------------------------------------------------

std::string kind_of(py::handle object) {
  const py::handle type = py::type::handle_of(object);
  const std::string module = text(type.attr("__module__")), name = text(type.attr("__qualname__"));
  return module == "builtins" ? name : module + "." + name;
}

View look_at(py::handle array, const char* name) { return look(array, name).view; }

View Arrays::input(py::handle array, const char* name) {
  LookedAt found = look(array, name);
  check_kind(array, name);
  if (found.device != device_of(first_)) {
    throw TypeError(message(name, " is on device 'cuda:", found.device, "' but ", first_name_,
                            " is on device 'cuda:", device_of(first_), "'"));
  }
  View view = found.view;
  if (!aligned(view)) throw ValueError(message(name, " must be aligned to its elements"));
  if (found.held) copies_.push_back(std::move(found.held));
  views_.push_back({view, name});
  return view;
}

View Arrays::output(py::handle array, const char* name, DType dtype,
                    const std::vector<int64_t>& shape) {
  LookedAt found = look(array, name);
  check_kind(array, name);
  check_result(found.view, name, dtype, shape);
  if (found.read_only) throw ValueError(message(name, " is read-only"));
  if (found.device != device_of(first_)) {
    throw TypeError(message(name, " is on device 'cuda:", found.device, "' but ", first_name_,
                            " is on device 'cuda:", device_of(first_), "'"));
  }
  if (!aligned(found.view)) throw ValueError(message(name, " must be aligned to its elements"));
  add_output(found.view, name);
  if (found.held) copies_.push_back(std::move(found.held));
  return found.view;
}

void Arrays::check_kind(py::handle array, const char* name) {
  if (!first_) {
    first_ = array, first_name_ = name;
  } else if (is_tensor(array) != is_tensor(first_)) {
    throw TypeError(message(name, " is a ", kind_of(array), " but ", first_name_, " is a ",
                            kind_of(first_), ": one call takes arrays of one kind"));
  }
}

Result new_result(py::handle like, DType dtype, const std::vector<int64_t>& shape) {
  Result result;
  if (is_tensor(like)) {
    result.array =
        like.attr("new_empty")(py::tuple(py::cast(shape)), py::arg("dtype") = torch_dtype(dtype));
    result.view = look(result.array, "a result").view;
  } else {
    result.array = new_by_namespace(like, dtype, look(like, "").view.dtype, shape);
    result.view = look(result.array, "a result").view;
  }
  return result;
}

Result new_result_like(py::handle like, const View& model) {
  const std::vector<int64_t> shape(model.shape, model.shape + model.rank);
  if (!is_tensor(like)) return new_result(like, model.dtype, shape);
  Result result;
  View wanted = model;
  set_strides_like(wanted, model);
  result.array = like.attr("new_empty_strided")(
      py::tuple(py::cast(shape)),
      py::tuple(py::cast(std::vector<int64_t>(wanted.stride, wanted.stride + wanted.rank))),
      py::arg("dtype") = torch_dtype(model.dtype));
  result.view = look(result.array, "a result").view;
  return result;
}

// --- device_arrays.h --------------------------------------------------------------------------

Place place_of(py::handle like) {
  const int device = device_of(like);
  raise_id_fault(device);
  return prepared_place(device, reinterpret_cast<void*>(stream_of(like, device)));
}

Scratch::Scratch(py::handle like, size_t bytes) {
  if (bytes == 0) return;
  Result result = new_result(like, DType::kUInt8, {static_cast<int64_t>(bytes)});
  held_ = std::move(result.array);
  data_ = result.view.data;
}

namespace {

std::string text_of(const IdFault& fault) {
  static constexpr const char* kNames[] = {"id", "position", "segment"};
  return message(kNames[fault.argument], " ", fault.id, " at place ", fault.place,
                 " is outside [0, ", fault.limit, ")");
}

}  // namespace

void raise_id_fault(int device) {
  const std::optional<IdFault> fault = take_id_fault(device);
  if (!fault) return;
  throw IndexError(message("in a call before this one, on device ", device, ", ", text_of(*fault),
                           "; its rows are NaN. tegula.cuda.set_id_checks('raise') makes the call "
                           "itself raise"));
}

void raise_id_fault_of_this_call(int device) {
  if (const std::optional<IdFault> fault = take_id_fault(device)) throw IndexError(text_of(*fault));
}

}  // namespace tegula
