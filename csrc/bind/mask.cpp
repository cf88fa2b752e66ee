
#include <algorithm>
#include <memory>

#include "mask_calls.h"

namespace tegula {
namespace {

void fill(py::handle out, py::handle lo, py::handle hi, py::handle dense, int threads) {
  Arrays arrays;
  const MaskFillArgs args = mask_fill_args(arrays, out, lo, hi, dense);
  GilRelease release;
  mask_fill(args, threads);
}

// (Lq, Lk) or (B, H, Lq, Lk) as the latter; an axis that repeats has size 1.
View with_four_axes(const View& given) {
  if (given.rank != 2) check_rank(given, "dense");
  View dense = given;
  for (int from_end = 0; from_end < 4; ++from_end) {
    const bool there = from_end < given.rank;
    dense.shape[3 - from_end] = there ? given.size(from_end) : 1;
    dense.stride[3 - from_end] = there ? given.step(from_end) : 0;
  }
  dense.rank = 4;
  for (int axis = 0; axis < 3; ++axis) {
    if (dense.stride[axis] == 0 && dense.shape[axis] > 1) dense.shape[axis] = 1;
  }
  return dense;
}

// The runs of True in each row: lo and hi, (B, H, Lq), or (2, B, H, Lq) where some row has two;
// and how many some row has: 1, 2, or 3 for more, with lo and hi from the first to the last.
py::tuple scan(py::handle dense, int threads) {
  Arrays arrays;
  MaskScanArgs args;
  args.dense = with_four_axes(arrays.input(dense, "dense"));
  if (args.dense.dtype != DType::kBool) {
    throw TypeError(message("dense must be bool, got ", name_of(args.dense.dtype)));
  }
  std::vector<int64_t> shape{args.dense.shape, args.dense.shape + 3};
  const int64_t rows = shape[0] * shape[1] * shape[2];
  const auto found = std::make_unique_for_overwrite<int32_t[]>(static_cast<size_t>(4 * rows));
  View runs;
  runs.data = found.get(), runs.dtype = DType::kInt32, runs.rank = 3;
  std::copy(shape.begin(), shape.end(), runs.shape);
  runs.stride[2] = 1, runs.stride[1] = shape[2], runs.stride[0] = shape[1] * shape[2];
  int64_t place = 0;  // lo of both runs, hi of both
  for (View* view : {&args.lo, &args.gap_hi, &args.gap_lo, &args.hi}) {
    *view = runs;
    view->data = found.get() + rows * place++;
  }
  MaskRuns count;
  {
    GilRelease release;
    count = mask_scan(args, threads);
  }
  const bool two = count == MaskRuns::kTwo;
  if (two) shape.insert(shape.begin(), 2);
  const auto handed = [&](const int32_t* from) {
    Result result = new_result(dense, DType::kInt32, shape);
    std::copy(from, from + rows * (two ? 2 : 1), result.view.at<int32_t>(0));
    return std::move(result.array);
  };
  const int32_t* hi = found.get() + rows * (two ? 2 : 3);
  return py::make_tuple(handed(found.get()), handed(hi), static_cast<int>(count) + 1);
}

}  // namespace

void bind_mask(py::module_& module) {
  module.def("mask_fill", &fill, py::arg("out"), py::arg("lo"), py::arg("hi"),
             py::arg("dense") = py::none(), py::arg("threads") = 0);
  module.def("mask_scan", &scan, py::arg("dense"), py::arg("threads") = 0);
}

}  // namespace tegula
