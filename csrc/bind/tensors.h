// torch tensors of the processor become Views, and Views tensors.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "../base/check.h"
#include "../base/view.h"
#include "exchange.h"

namespace tegula {

namespace py = pybind11;

// Dtype, shape and strides of a tensor, and its memory, which stays valid while the tensor
// lives. An empty tensor gets an address too, so that its View says that it is there.
// NotPlainError unless it is plain memory of this machine's processor, TypeError for other dtypes.
View tensor_view(py::handle tensor, const char* name);

// A fresh tensor on memory of this module, large ones on the result pool's. `view` says its dtype,
// shape and strides, which leave no gaps, and gets its memory.
py::object new_tensor(View& view);

// A tensor of `dtype` on the memory of an array whose elements have its size, or are bytes of one
// row.
py::object as_tensor(const py::array& array, DType dtype);

}  // namespace tegula
