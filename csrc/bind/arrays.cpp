#include "arrays.h"

#include <algorithm>

#include "../base/result_pool.h"
#include "tensors.h"

namespace tegula {
namespace {

// ml_dtypes.bfloat16 is a void-kind dtype of two bytes that NumPy knows by name only
// once ml_dtypes is imported; plain 'V2' and uint16 are never taken for it. The
// descriptor is remembered: looking at its name costs more than a small kernel.
bool is_bfloat16(const py::dtype& dtype) {
  static PyObject* known = nullptr;
  if (dtype.ptr() == known) return true;
  if (dtype.itemsize() != 2 || (dtype.kind() != 'V' && dtype.kind() != 'f')) return false;
  if (!py::cast<std::string>(dtype.attr("name")).starts_with("bfloat16")) return false;
  if (known == nullptr) known = py::object(dtype).release().ptr();
  return true;
}

bool find_dtype(const py::dtype& dtype, DType& found) {
  switch (dtype.kind()) {
    case 'f':
      switch (dtype.itemsize()) {
        case 8: found = DType::kFloat64; return true;
        case 4: found = DType::kFloat32; return true;
        case 2: found = is_bfloat16(dtype) ? DType::kBFloat16 : DType::kFloat16; return true;
      }
      return false;
    case 'V': found = DType::kBFloat16; return is_bfloat16(dtype);
    case 'b': found = DType::kBool; return dtype.itemsize() == 1;
    case 'i':
    case 'u': {
      const bool is_signed = dtype.kind() == 'i';
      switch (dtype.itemsize()) {
        case 1: found = is_signed ? DType::kInt8 : DType::kUInt8; return true;
        case 2: found = is_signed ? DType::kInt16 : DType::kUInt16; return true;
        case 4: found = is_signed ? DType::kInt32 : DType::kUInt32; return true;
        case 8: found = is_signed ? DType::kInt64 : DType::kUInt64; return true;
      }
      return false;
    }
  }
  return false;
}

constexpr int kAligned = 0x0100;  // NPY_ARRAY_ALIGNED

bool native(const py::array& array, int64_t item) {
  const char order = array.dtype().byteorder();
  if (order == (std::endian::native == std::endian::little ? '>' : '<')) return false;
  if ((array.flags() & kAligned) == 0) return false;
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
    if (array.strides(axis) % item != 0) return false;
  }
  return true;
}

const py::array& as_array(const py::handle& object) {
  return reinterpret_cast<const py::array&>(object);
}

DType dtype_of(const py::array& array, const char* name) {
  DType dtype;
  if (!find_dtype(array.dtype(), dtype)) {
    throw TypeError(message(name, " has dtype ", py::cast<std::string>(py::str(array.dtype())),
                            ", which is not supported"));
  }
  return dtype;
}

}  // namespace

std::string kind_of(py::handle object) {
  if (py::isinstance<py::array>(object)) {
    return py::cast<std::string>(py::str(object.attr("dtype"))) + " array of shape " +
           py::cast<std::string>(py::str(object.attr("shape")));
  }
  const py::handle type = py::type::handle_of(object);
  const auto module = py::cast<std::string>(py::str(type.attr("__module__")));
  const auto name = py::cast<std::string>(py::str(type.attr("__qualname__")));
  return module == "builtins" ? name : module + "." + name;
}

View view_of(const py::array& array, DType dtype) {
  if (array.ndim() > kMaxRank) {
    throw ValueError(message("arrays may have at most ", kMaxRank, " axes, got ", array.ndim()));
  }
  View view;
  view.data = const_cast<void*>(array.data());
  view.dtype = dtype;
  view.rank = static_cast<int32_t>(array.ndim());
  const int64_t item = item_size(dtype);
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = array.shape(axis);
    view.stride[axis] = array.strides(axis) / item;
  }
  return view;
}

View look_at(py::handle object, const char* name) {
  if (py::isinstance<py::array>(object)) {
    return view_of(as_array(object), dtype_of(as_array(object), name));
  }
  if (is_tensor(object)) return tensor_view(object, name);
  throw TypeError(message(name, " must be a NumPy array or a torch tensor, got ", kind_of(object)));
}

View Arrays::input(py::handle object, const char* name) {
  View view = look_at(object, name);
  check_kind(object, name);
  if (views_.empty()) views_.reserve(8);
  views_.push_back({view, name});
  if (!py::isinstance<py::array>(object)) {
    if (aligned(view)) return view;
    copies_.push_back(object.attr("clone")());
    return tensor_view(copies_.back(), name);
  }
  const py::array& array = as_array(object);
  if (native(array, item_size(view.dtype))) return view;
  py::array copy = array.attr("astype")(array.dtype().attr("newbyteorder")("="), "C");
  copies_.push_back(copy);
  return view_of(copy, view.dtype);
}

View Arrays::output(py::handle object, const char* name, DType dtype,
                    const std::vector<int64_t>& shape) {
  View view = look_at(object, name);
  check_kind(object, name);
  check_result(view, name, dtype, shape);
  const bool is_array = py::isinstance<py::array>(object);
  if (is_array && !as_array(object).writeable()) {
    throw ValueError(message(name, " is read-only"));
  }
  if (is_array ? !native(as_array(object), item_size(dtype)) : !aligned(view)) {
    throw ValueError(message(name, " must be aligned and in native byte order"));
  }
  add_output(view, name);
  return view;
}

void Arrays::check_kind(py::handle object, const char* name) {
  if (!first_) {
    first_ = object, first_name_ = name;
  } else if (py::isinstance<py::array>(object) != py::isinstance<py::array>(first_)) {
    throw TypeError(message(name, " is a ", kind_of(object), " but ", first_name_, " is a ",
                            kind_of(first_),
                            ": one call takes NumPy arrays or torch tensors, not both"));
  }
}

py::array new_array(DType dtype, const std::vector<int64_t>& shape, py::handle like) {
  static const auto descriptor = [](auto zero) {
    return py::dtype::of<decltype(zero)>().release().ptr();
  };
  static PyObject* const kKnown[] = {descriptor(double{}), descriptor(float{}),
                                     py::dtype("float16").release().ptr()};
  static PyObject* const kInt32 = descriptor(int32_t{});
  if (dtype == DType::kInt32) return new_array(py::reinterpret_borrow<py::dtype>(kInt32), shape);
  if (dtype == DType::kBFloat16 && !py::isinstance<py::array>(like)) {
    throw TypeError("bfloat16 results need the caller's memory where the input is no NumPy array");
  }
  py::dtype type = dtype == DType::kBFloat16
                       ? py::reinterpret_borrow<py::array>(like).dtype()
                       : py::reinterpret_borrow<py::dtype>(kKnown[static_cast<int>(dtype)]);
  return new_array(type, shape);
}

py::array new_array(const py::dtype& type, const std::vector<int64_t>& shape, bool* zeros) {
  int64_t bytes = type.itemsize();
  for (int64_t size : shape) bytes *= size;
  if (zeros != nullptr) *zeros = false;
  if (bytes < static_cast<int64_t>(kPooledBytes)) return py::array(type, shape);
  auto block = std::make_unique<ResultBlock>(take_result_block(static_cast<size_t>(bytes)));
  if (zeros != nullptr) *zeros = block->zeros;
  void* const data = block->data;
  const py::capsule owner(block.get(), [](void* held) {
    const std::unique_ptr<ResultBlock> given(static_cast<ResultBlock*>(held));
    give_result_block(*given);
  });
  block.release();
  return py::array(type, shape, data, owner);
}

Result new_result(py::handle like, DType dtype, const std::vector<int64_t>& shape) {
  Result result;
  if (is_tensor(like)) {
    View& view = result.view;
    view.dtype = dtype;
    view.rank = static_cast<int32_t>(shape.size());
    int64_t step = 1;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      view.shape[axis] = shape[static_cast<size_t>(axis)];
      view.stride[axis] = step;
      step *= std::max<int64_t>(1, view.shape[axis]);
    }
    result.array = new_tensor(view);
  } else {
    py::array fresh = new_array(dtype, shape, like);
    result.view = view_of(fresh, dtype);
    result.array = std::move(fresh);
  }
  return result;
}

Result new_result_like(py::handle like, const View& model) {
  if (!is_tensor(like)) {
    return new_result(like, model.dtype, {model.shape, model.shape + model.rank});
  }
  Result result;
  result.view = model;
  set_strides_like(result.view, model);
  result.array = new_tensor(result.view);
  return result;
}

}  // namespace tegula
