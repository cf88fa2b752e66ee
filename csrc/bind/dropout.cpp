// The decisions of base/philox.h, one element after the other: what the vectorised
// kernels are held to.
#include <pybind11/stl.h>

#include "../base/parallel.h"
#include "../base/philox.h"
#include "arrays.h"

namespace tegula {
namespace {

py::array dropout_mask(uint64_t seed, double p, const std::vector<int64_t>& shape, int threads) {
  py::array_t<bool> result(shape);
  bool* kept = result.mutable_data();
  const size_t rank = shape.size();
  const int64_t columns = rank > 0 ? shape[rank - 1] : 1;
  const int64_t rows = rank > 1 ? shape[rank - 2] : 1;
  const int64_t lines = columns > 0 ? result.size() / columns : 0;
  const Dropout dropout = make_dropout(p, seed);
  constexpr double kWorkPerElement = 100.0;
  GilRelease unlocked;
  const double work = kWorkPerElement * static_cast<double>(lines) * static_cast<double>(columns);
  parallel_for(lines, threads_for(work, threads), [&](int64_t line) {
    bool* out = kept + line * columns;
    for (int64_t column = 0; column < columns; column += 4) {
      const PhiloxWords words =
          philox(seed, static_cast<uint64_t>(line / rows), static_cast<uint32_t>(line % rows),
                 static_cast<uint32_t>(column / 4));
      for (int64_t i = 0; i < 4 && column + i < columns; ++i) {
        out[column + i] = p < 1.0 && (p <= 0.0 || words.word[i] >= dropout.threshold);
      }
    }
  });
  return result;
}

}  // namespace

void bind_dropout(py::module_& module) {
  module.def("dropout_mask", &dropout_mask, py::arg("seed"), py::arg("p"), py::arg("shape"),
             py::arg("threads") = 0);
}

}  // namespace tegula
