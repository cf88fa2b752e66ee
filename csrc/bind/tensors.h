// torch tensors become Views. Nothing of torch is imported, linked or included here: a tensor
// describes itself through the C functions of the DLPack exchange API, or its attributes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "../base/check.h"
#include "../base/view.h"

namespace tegula {

namespace py = pybind11;

// Parameters and other subclasses of torch.Tensor count. Costs a comparison of types as long
// as nobody has imported torch.
bool is_tensor(py::handle object);

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

// The strides of torch.empty_like(model): those of `model` where they leave no gaps, or else its
// axes in their order in memory.
void set_strides_like(View& view, const View& model);

}  // namespace tegula
