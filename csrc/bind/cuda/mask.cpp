// Masks on a GPU.
#include "../../dropout/cuda/dropout_cuda.h"
#include "../../mask/cuda/mask_cuda.h"
#include "../mask_calls.h"
#include "device_arrays.h"
#include "seed.h"

namespace tegula {
namespace {

void fill(py::handle out, py::handle lo, py::handle hi, py::handle dense, int) {
  Arrays arrays;
  const MaskFillArgs args = mask_fill_args(arrays, out, lo, hi, dense);
  const Place place = place_of(out);
  GilRelease unlocked;
  mask_fill(args, place);
}

// Where the True of each row of dense, bool (B, H, Lq, Lk), begin and end, in lo and hi, int32
// (B, H, Lq).
void scan(py::handle dense, py::handle lo, py::handle hi) {
  Arrays arrays;
  MaskScanArgs args;
  args.dense = arrays.input(dense, "dense");
  check_rank(args.dense, "dense");
  if (args.dense.dtype != DType::kBool) {
    throw TypeError(message("dense must be bool, got ", name_of(args.dense.dtype)));
  }
  const std::vector<int64_t> shape{args.dense.shape, args.dense.shape + 3};
  args.lo = arrays.output(lo, "lo", DType::kInt32, shape);
  args.hi = arrays.output(hi, "hi", DType::kInt32, shape);
  const Place place = place_of(dense);
  GilRelease unlocked;
  mask_scan(args, place);
}

void keep(py::handle out, py::handle seed, double p) {
  Arrays arrays;
  View view = look_at(out, "out");
  view = arrays.output(out, "out", DType::kBool, {view.shape, view.shape + view.rank});
  const Dropout dropout = dropout_of(arrays, p, seed);
  const Place place = place_of(out);
  GilRelease unlocked;
  dropout_mask(dropout, view, place);
}

}  // namespace

void bind_mask(py::module_& module) {
  module.def("mask_fill", &fill, py::arg("out"), py::arg("lo"), py::arg("hi"),
             py::arg("dense") = py::none(), py::arg("threads") = 0);
  module.def("mask_scan", &scan, py::arg("dense"), py::arg("lo"), py::arg("hi"));
  module.def("dropout_mask", &keep, py::arg("out"), py::arg("seed"), py::arg("p"));
}

}  // namespace tegula
