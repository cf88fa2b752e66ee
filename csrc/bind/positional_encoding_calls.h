// The arguments of positional_encoding from Python to native ones, but for `out`, wherever it runs.
#pragma once

#include <cmath>

#include "../positional_encoding/positional_encoding.h"
#include "arrays.h"

namespace tegula {

inline PositionalEncodingArgs positional_encoding_args(Arrays& arrays, py::handle positions,
                                                       int64_t dim, double base, bool split,
                                                       bool inclusive) {
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
  return args;
}

template <class Encode>
void define_positional_encoding(py::module_& module, Encode encode) {
  module.def("positional_encoding", encode, py::arg("positions"), py::arg("dim"), py::arg("base"),
             py::arg("split"), py::arg("inclusive"), py::arg("dtype"), py::arg("out"),
             py::arg("threads") = 0);
}

// The shape of the result: that of positions, then dim.
inline std::vector<int64_t> encoding_shape(const View& positions, int64_t dim) {
  std::vector<int64_t> shape(positions.shape, positions.shape + positions.rank);
  shape.push_back(dim);
  return shape;
}

}  // namespace tegula
