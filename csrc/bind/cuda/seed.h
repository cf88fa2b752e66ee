// Dropout's seed: a number, or one int64 in device memory, which kernels read when they run, so
// that a CUDA graph draws anew each time it is replayed.
#pragma once

#include "../../base/philox.h"
#include "device_arrays.h"

namespace tegula {

inline Dropout dropout_of(Arrays& arrays, double p, py::handle seed) {
  if (py::isinstance<py::int_>(seed)) return make_dropout(p, py::cast<uint64_t>(seed));
  Dropout dropout = make_dropout(p, 0);
  if (!dropout.active()) return dropout;
  const View view = arrays.input(seed, "seed");
  if (view.dtype != DType::kInt64 || view.count() != 1) {
    throw TypeError(message("seed must be one int64, got ", name_of(view.dtype), " of shape ",
                            shape_text(view)));
  }
  dropout.device_seed = view.at<const uint64_t>(0);
  return dropout;
}

}  // namespace tegula
