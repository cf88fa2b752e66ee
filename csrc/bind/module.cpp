// tegula._core: the functions behind the Python package. No Python object reaches
// further than this folder, and each operation releases the GIL in one place.
#include <pybind11/stl.h>

#include "../base/parallel.h"
#include "../isa/select.h"
#include "arrays.h"
#include "errors.h"

PYBIND11_MODULE(_core, module) {
  using namespace tegula;
  py::register_local_exception_translator([](std::exception_ptr error) {
    if (error) translate(error);
  });
  py::register_local_exception<NotPlainError>(module, "NotPlainError", PyExc_TypeError);

  // pybind11 finds NumPy's functions at first use, and lets go of the GIL for it: now rather
  // than in a thread that the interpreter may be leaving behind.
  py::dtype::of<float>();

  module.attr("compiler") = __VERSION__;
  module.def("isa_name", [] { return kernels().name; });
  module.def("set_isa", &set_isa, py::arg("name"));
  module.def("compiled_isas", &compiled_isas);
  module.def("available_isas", &available_isas);
  module.def("num_threads", &num_threads, py::arg("requested") = 0);
  module.def("set_num_threads", &set_num_threads, py::arg("threads"));

  bind_memory(module);
  bind_dropout(module);
  bind_positional_encoding(module);
  bind_embedding(module);
  bind_attention(module);
  bind_explain(module);
  bind_mask(module);
}
