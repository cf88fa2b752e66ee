#include "../mask/mask.h"

#include "intervals.h"

namespace tegula {
namespace {

void check_rank(const View& view, const char* name) {
  if (view.rank != 4) throw ValueError(message(name, " must have 4 axes, got ", shape_text(view)));
}

void fill(py::handle out, py::handle lo, py::handle hi, py::handle dense, int threads) {
  Arrays arrays;
  const View given = look_at(out, "out");
  const DType dtype = given.dtype;
  if (dtype != DType::kBool && !is_float(dtype)) {
    throw TypeError(message("out must be bool or a float type, got ", name_of(dtype)));
  }
  check_rank(given, "out");
  MaskFillArgs args;
  IntervalViews rows(arrays.input(lo, "lo"), arrays.input(hi, "hi"));
  rows.spread_over(given);
  args.lo = rows.lo, args.hi = rows.hi, args.gap_lo = rows.gap_lo, args.gap_hi = rows.gap_hi;
  if (!dense.is_none()) {
    args.dense = spread(arrays.input(dense, "dense"), "dense", DType::kBool, 4, given);
  }
  args.out = arrays.output(out, "out", dtype, {given.shape, given.shape + 4});
  GilRelease release;
  mask_fill(args, threads);
}

// How many runs some row has, 1 or 2, or 3 for more.
int scan(py::handle dense, py::handle lo, py::handle hi, int threads) {
  Arrays arrays;
  MaskScanArgs args;
  args.dense = arrays.input(dense, "dense");
  check_rank(args.dense, "dense");
  if (args.dense.dtype != DType::kBool) {
    throw TypeError(message("dense must be bool, got ", name_of(args.dense.dtype)));
  }
  const std::vector<int64_t> shape{2, args.dense.shape[0], args.dense.shape[1],
                                   args.dense.shape[2]};
  const IntervalViews rows(arrays.output(lo, "lo", DType::kInt32, shape),
                           arrays.output(hi, "hi", DType::kInt32, shape));
  args.lo = rows.lo, args.hi = rows.hi, args.gap_lo = rows.gap_lo, args.gap_hi = rows.gap_hi;
  GilRelease release;
  return static_cast<int>(mask_scan(args, threads)) + 1;
}

}  // namespace

void bind_mask(py::module_& module) {
  module.def("mask_fill", &fill, py::arg("out"), py::arg("lo"), py::arg("hi"),
             py::arg("dense") = py::none(), py::arg("threads") = 0);
  module.def("mask_scan", &scan, py::arg("dense"), py::arg("lo"), py::arg("hi"),
             py::arg("threads") = 0);
}

}  // namespace tegula
