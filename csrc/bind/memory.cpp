// The memory of large results: what Python may see and set of it.
#include <pybind11/stl.h>

#include "../base/result_pool.h"
#include "arrays.h"

namespace tegula {

void bind_memory(py::module_& module) {
  module.attr("pooled_bytes") = kPooledBytes;
  module.def(
      "new_bytes", [](int64_t bytes) { return new_array(py::dtype::of<uint8_t>(), {bytes}); },
      py::arg("bytes"));
  module.def(
      "new_result",
      [](py::handle like, const std::vector<int64_t>& shape) {
        if (shape.size() > kMaxRank) throw ValueError("a result has too many axes");
        return new_result(like, look_at(like, "like").dtype, shape).array;
      },
      py::arg("like"), py::arg("shape"));
  module.def("cache_state", [] {
    const ResultPoolState state = result_pool_state();
    return py::make_tuple(state.limit, state.kept, state.in_use);
  });
  module.def("set_cache_limit", &set_result_pool_limit, py::arg("bytes"));
  module.def("empty_cache", &empty_result_pool);
}

}  // namespace tegula
