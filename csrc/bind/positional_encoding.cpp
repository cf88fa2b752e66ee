#include "positional_encoding_calls.h"

namespace tegula {
namespace {

// `dtype` is a NumPy dtype, or None for that of `out`.
py::object encode(py::handle positions, int64_t dim, double base, bool split, bool inclusive,
                  py::handle dtype, py::object out, int threads) {
  Arrays arrays;
  PositionalEncodingArgs args =
      positional_encoding_args(arrays, positions, dim, base, split, inclusive);
  const std::vector<int64_t> shape = encoding_shape(args.positions, dim);
  const py::object like =
      dtype.is_none() ? out
                      : py::array(py::dtype::from_args(py::reinterpret_borrow<py::object>(dtype)),
                                  std::vector<int64_t>{0});
  const DType type = look_at(like, dtype.is_none() ? "out" : "dtype").dtype;
  if (!is_float(type)) throw TypeError(message("dtype must be a float type, got ", name_of(type)));
  if (out.is_none()) {
    py::array result = new_array(type, shape, like);
    args.out = view_of(result, type);
    out = result;
  } else {
    args.out = arrays.output(out, "out", type, shape);
  }
  GilRelease unlocked;
  positional_encoding(args, threads);
  return out;
}

}  // namespace

void bind_positional_encoding(py::module_& module) { define_positional_encoding(module, &encode); }

}  // namespace tegula
