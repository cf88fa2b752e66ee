// torch tensors become Views. Nothing of torch is imported, linked or included here: a tensor
// describes itself through the C functions of the DLPack exchange API, or its attributes.
#pragma once

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
// TypeError unless it is plain memory of this machine's processor, in a known dtype.
View tensor_view(py::handle tensor, const char* name);

}  // namespace tegula
