// The memory of large results: what Python may see and set of it.
#include "../base/result_pool.h"
#include "arrays.h"

namespace tegula {

void bind_memory(py::module_& module) {
  module.attr("pooled_bytes") = kPooledBytes;
  module.def(
      "new_bytes", [](int64_t bytes) { return new_array(py::dtype::of<uint8_t>(), {bytes}); },
      py::arg("bytes"));
  module.def("cache_state", [] {
    const ResultPoolState state = result_pool_state();
    return py::make_tuple(state.limit, state.kept, state.in_use);
  });
  module.def("set_cache_limit", &set_result_pool_limit, py::arg("bytes"));
  module.def("empty_cache", &empty_result_pool);
}

}  // namespace tegula
