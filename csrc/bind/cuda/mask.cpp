// Masks on a GPU.
#include "../../mask/cuda/mask_cuda.h"
#include "../mask_calls.h"
#include "device_arrays.h"

namespace tegula {
namespace {

void fill(py::handle out, py::handle lo, py::handle hi, py::handle dense, int) {
  Arrays arrays;
  const MaskFillArgs args = mask_fill_args(arrays, out, lo, hi, dense);
  const Place place = place_of(out);
  GilRelease unlocked;
  mask_fill(args, place);
}

}  // namespace

void bind_mask(py::module_& module) {
  module.def("mask_fill", &fill, py::arg("out"), py::arg("lo"), py::arg("hi"),
             py::arg("dense") = py::none(), py::arg("threads") = 0);
}

}  // namespace tegula
