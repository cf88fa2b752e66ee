// tegula._cuda: the operations on GPUs, with the functions of tegula._core. Importing it needs no
// driver; the first call with an array of a device looks for one.
#include <pybind11/stl.h>

#include "../../cuda/driver.h"
#include "../errors.h"
#include "device_arrays.h"

namespace tegula {
namespace {

void translate_here(std::exception_ptr error) {
  try {
    translate(error);
  } catch (const CudaError& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

// NotPlainError is a TypeError, and comes first.
void translate_not_plain(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const NotPlainError& e) {
    static const py::handle kKind =
        py::object(py::module_::import("tegula._core").attr("NotPlainError")).release();
    PyErr_SetString(kKind.ptr(), e.what());
  }
}

// What each device is: (name, (major, minor), multiprocessors).
py::list devices() {
  py::list found;
  for (int device = 0; device < device_count(); ++device) {
    const DeviceFacts facts = device_facts(device);
    found.append(py::make_tuple(device_name(device), py::make_tuple(facts.major, facts.minor),
                                facts.processors));
  }
  return found;
}

}  // namespace
}  // namespace tegula

PYBIND11_MODULE(_cuda, module) {
  using namespace tegula;
  // The one that is registered last is asked first.
  py::register_local_exception_translator([](std::exception_ptr error) {
    if (error) translate_here(error);
  });
  py::register_local_exception_translator([](std::exception_ptr error) {
    if (error) translate_not_plain(error);
  });

  py::module_::import("tegula._core");  // whose NotPlainError is raised here as well
  module.attr("toolkit") = TEGULA_CUDA_TOOLKIT;
  module.def("devices", &devices);
  module.def("warm_up", [](int device) { prepared_place(device, nullptr); }, py::arg("device"));
  module.def("raise_id_fault", &raise_id_fault, py::arg("device"));

  bind_positional_encoding(module);
  bind_embedding(module);
  bind_mask(module);
  bind_attention(module);
}
