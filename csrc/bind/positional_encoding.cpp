#include "../positional_encoding/positional_encoding.h"

#include <cmath>

#include "arrays.h"

namespace tegula {
namespace {

// `dtype` is a NumPy dtype, or None for that of `out`.
py::object encode(py::handle positions, int64_t dim, double base, bool split, bool inclusive,
                  py::handle dtype, py::object out, int threads) {
  Arrays arrays;
  PositionalEncodingArgs args;
  args.positions = arrays.input(positions, "positions");
  if (args.positions.dtype == DType::kBool) {
    throw TypeError("positions must have an integer or float dtype, got bool");
  }
  if (dim < 0) throw ValueError(message("dim must be at least 0, got ", dim));
  if (!(base > 0.0) || !std::isfinite(base)) {
    throw ValueError(message("base must be a positive finite number, got ", base));
  }
  if (args.positions.rank >= kMaxRank) {
    throw ValueError(message("positions may have at most ", kMaxRank - 1, " axes"));
  }
  args.base = base;
  args.layout = split ? PositionLayout::kSplit : PositionLayout::kInterleaved;
  args.spacing = inclusive ? PositionSpacing::kInclusive : PositionSpacing::kPaper;

  std::vector<int64_t> shape(args.positions.shape, args.positions.shape + args.positions.rank);
  shape.push_back(dim);
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

void bind_positional_encoding(py::module_& module) {
  module.def("positional_encoding", &encode, py::arg("positions"), py::arg("dim"), py::arg("base"),
             py::arg("split"), py::arg("inclusive"), py::arg("dtype"), py::arg("out"),
             py::arg("threads") = 0);
}

}  // namespace tegula
