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
#include "exchange.h"

namespace tegula {
namespace {

void check_device(py::handle tensor, const char* name) {
  const std::string device = text(tensor.attr("device"));
  if (device == "cpu") return;
#ifdef TEGULA_WITH_CUDA
  const bool known = true;
#else
  const bool known = device.compare(0, 4, "cuda") != 0;
#endif
  throw NotPlainError(message(name, " is on device '", device, "', expected 'cpu'",
                              known ? "" : ": this is no CUDA build of tegula"));
}

View by_exchange(const DLPackExchangeAPI& api, py::handle tensor, const char* name) {
  DLTensor given;
  if (api.dltensor_from_py_object_no_sync(tensor.ptr(), &given) != 0) {
    py::error_already_set error;
    if (!error.matches(PyExc_Exception)) throw error;  // KeyboardInterrupt and its kind
    check_device(tensor, name);
    check_strided(tensor, name);
    refuse_tensor(tensor, name, error.what());
  }
  if (given.device.type != kDLCPU) check_device(tensor, name);
  return view_of(given, tensor, name);
}

View by_attributes(py::handle tensor, const char* name) {
  check_device(tensor, name);
  check_strided(tensor, name);
  return view_by_attributes(tensor, name);
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
    owned->tensor.version = {kDLPackMajor, 0};
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

}  // namespace

View tensor_view(py::handle tensor, const char* name) {
  const DLPackExchangeAPI* api = exchange(Py_TYPE(tensor.ptr()));
  View view = api != nullptr ? by_exchange(*api, tensor, name) : by_attributes(tensor, name);
  if (view.data == nullptr) {
    // Fake, functional and distributed tensors export shapes without memory.
    if (view.count() > 0) refuse_tensor(tensor, name, "has no memory of its own");
    alignas(16) static char nothing[16];
    view.data = nothing;
  }
  check_not_negated(tensor, name);
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

}  // namespace tegula
