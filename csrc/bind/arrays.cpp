#include "arrays.h"

#include <algorithm>

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

// First byte and one past the last byte that an array reaches.
std::pair<const char*, const char*> extent(const py::array& array) {
  const char* low = static_cast<const char*>(array.data());
  const char* high = low + array.itemsize();
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
    if (array.shape(axis) == 0) return {low, low};
    const int64_t reach = (array.shape(axis) - 1) * array.strides(axis);
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

const py::array& as_array(const py::handle& object, const char* name) {
  if (!py::isinstance<py::array>(object)) {
    throw TypeError(message(name, " must be a NumPy array, got ", kind_of(object)));
  }
  return reinterpret_cast<const py::array&>(object);
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

DType dtype_of(py::handle object, const char* name) {
  const py::array& array = as_array(object, name);
  DType dtype;
  if (!find_dtype(array.dtype(), dtype)) {
    throw TypeError(message(name, " has dtype ", py::cast<std::string>(py::str(array.dtype())),
                            ", which is not supported"));
  }
  return dtype;
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

View Arrays::input(py::handle object, const char* name) {
  const DType dtype = dtype_of(object, name);
  if (inputs_.empty()) inputs_.reserve(8);
  inputs_.push_back({object, name});
  const py::array& array = reinterpret_cast<const py::array&>(object);
  if (native(array, item_size(dtype))) return view_of(array, dtype);
  py::array copy = array.attr("astype")(array.dtype().attr("newbyteorder")("="), "C");
  copies_.push_back(copy);
  return view_of(copy, dtype);
}

View Arrays::output(py::handle object, const char* name, DType dtype,
                    const std::vector<int64_t>& shape) {
  const DType given = dtype_of(object, name);
  const py::array& array = reinterpret_cast<const py::array&>(object);
  if (given != dtype) {
    throw TypeError(message(name, " must have dtype ", name_of(dtype), ", got ", name_of(given)));
  }
  const View view = view_of(array, dtype);
  View expected;
  expected.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), expected.shape);
  if (view.rank != expected.rank || !std::equal(shape.begin(), shape.end(), view.shape)) {
    throw ValueError(
        message(name, " must have shape ", shape_text(expected), ", got ", shape_text(view)));
  }
  if (!array.writeable()) throw ValueError(message(name, " is read-only"));
  if (!native(array, item_size(dtype))) {
    throw ValueError(message(name, " must be aligned and in native byte order"));
  }
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.count() > 0 && view.stride[axis] == 0 && view.shape[axis] > 1) {
      throw ValueError(message(name, " has stride 0 on axis ", axis, ": its elements overlap"));
    }
  }
  check_overlap(array, name);
  return view;
}

View spread(View view, const char* name, DType dtype, int rank, const View& sizes) {
  if (view.dtype != dtype) {
    throw TypeError(message(name, " must be ", name_of(dtype), ", got ", name_of(view.dtype)));
  }
  bool fits = view.rank == rank;
  for (int axis = 0; fits && axis < rank; ++axis) {
    if (view.shape[axis] == 1) view.stride[axis] = 0;
    fits = view.shape[axis] == 1 || view.shape[axis] == sizes.shape[axis];
  }
  if (!fits) {
    throw ValueError(
        message(name, " has shape ", shape_text(view), ", which does not fit ", shape_text(sizes)));
  }
  std::copy(sizes.shape, sizes.shape + rank, view.shape);
  return view;
}

void Arrays::check_overlap(const py::array& out, const char* name) const {
  const auto [out_low, out_high] = extent(out);
  for (const Input& input : inputs_) {
    const auto& array = reinterpret_cast<const py::array&>(input.array);
    const auto [low, high] = extent(array);
    if (out_low >= high || low >= out_high) continue;
    // Interleaved arrays may share an extent and no element; beyond the bound on the work
    // of finding out, they count as sharing.
    const py::module_ numpy = py::module_::import("numpy");
    bool shared = true;
    try {
      shared = py::cast<bool>(numpy.attr("shares_memory")(out, array, py::arg("max_work") = 1000));
    } catch (py::error_already_set& error) {
      if (!error.matches(numpy.attr("exceptions").attr("TooHardError"))) throw;
    }
    if (shared) throw ValueError(message(name, " shares memory with ", input.name));
  }
}

py::array new_array(DType dtype, const std::vector<int64_t>& shape, py::handle like) {
  static const auto descriptor = [](auto zero) {
    return py::dtype::of<decltype(zero)>().release().ptr();
  };
  static PyObject* const kKnown[] = {descriptor(double{}), descriptor(float{}),
                                     py::dtype("float16").release().ptr()};
  py::dtype type = dtype == DType::kBFloat16
                       ? py::reinterpret_borrow<py::array>(like).dtype()
                       : py::reinterpret_borrow<py::dtype>(kKnown[static_cast<int>(dtype)]);
  return py::array(type, shape);
}

}  // namespace tegula
