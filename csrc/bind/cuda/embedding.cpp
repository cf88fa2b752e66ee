// The embedding on a GPU.
#include "../../cuda/driver.h"
#include "../../cuda/launch.h"
#include "../../embedding/cuda/embedding_cuda.h"
#include "../embedding_calls.h"
#include "device_arrays.h"
#include "seed.h"

namespace tegula {
namespace {

// Whether a call waits for its ids to be checked, before anything is written.
bool g_checks_first = false;

template <class Check>
void check_first(const Place& place, Check&& check) {
  {
    GilRelease unlocked;
    check();
    synchronize(place);
  }
  raise_id_fault_of_this_call(place.device);
}

struct OnDevice {
  static Dropout dropout(Arrays& arrays, double p, py::handle seed) {
    return dropout_of(arrays, p, seed);
  }
  static void embedding(const EmbeddingArgs& args, py::handle like) {
    Place place = place_of(like);
    const Scratch scratch(like, embedding_workspace(args));
    place.workspace = scratch.data();
    if (g_checks_first) check_first(place, [&] { check_embedding_ids(args, place); });
    GilRelease unlocked;
    tegula::embedding(args, place);
  }
};

// Adds to `out`.
void backward(py::handle grad, py::handle ids, int64_t num_rows, int64_t padding_idx,
              py::object ignore_id, double scale, double dropout_p, py::handle seed, py::handle out,
              int threads) {
  Arrays arrays;
  const EmbeddingBackwardArgs args = embedding_backward_args<OnDevice>(
      arrays, grad, ids, num_rows, padding_idx, ignore_id, scale, dropout_p, seed, threads);
  const View target = arrays.output(out, "out", args.grad.dtype, {num_rows, args.grad.size(0)});
  Place place = place_of(grad);
  const Scratch scratch(grad, embedding_backward_workspace(args));
  place.workspace = scratch.data();
  if (g_checks_first) check_first(place, [&] { check_embedding_backward_ids(args, place); });
  GilRelease unlocked;
  embedding_backward(args, target, place);
}

// The rows with a place: how many there are has to come back from the device.
py::tuple backward_sparse(py::handle grad, py::handle ids, int64_t num_rows, int64_t padding_idx,
                          py::object ignore_id, double scale, double dropout_p, py::handle seed,
                          int threads) {
  Arrays arrays;
  const EmbeddingBackwardArgs args = embedding_backward_args<OnDevice>(
      arrays, grad, ids, num_rows, padding_idx, ignore_id, scale, dropout_p, seed, threads);
  Place place = place_of(grad);
  const Scratch scratch(grad, embedding_backward_workspace(args));
  place.workspace = scratch.data();
  if (g_checks_first) check_first(place, [&] { check_embedding_backward_ids(args, place); });
  int64_t rows;
  {
    GilRelease unlocked;
    rows = embedding_backward_sparse_rows(args, place);
  }
  const Result found = new_result(grad, DType::kInt64, {rows});
  const Result sums = new_result(grad, args.grad.dtype, {rows, args.grad.size(0)});
  {
    GilRelease unlocked;
    clear(place, sums.view.data,
          static_cast<size_t>(sums.view.count() * item_size(sums.view.dtype)));
    embedding_backward_sparse(args, found.view, sums.view, place);
  }
  return py::make_tuple(found.array, sums.array);
}

}  // namespace

void bind_embedding(py::module_& module) {
  define_embedding<OnDevice>(module);
  module.def("embedding_backward", &backward, py::arg("grad"), py::arg("ids"), py::arg("num_rows"),
             py::arg("padding_idx"), py::arg("ignore_id"), py::arg("scale"), py::arg("dropout_p"),
             py::arg("seed"), py::arg("out"), py::arg("threads"));
  module.def("embedding_backward_sparse", &backward_sparse, py::arg("grad"), py::arg("ids"),
             py::arg("num_rows"), py::arg("padding_idx"), py::arg("ignore_id"), py::arg("scale"),
             py::arg("dropout_p"), py::arg("seed"), py::arg("threads"));
  module.def("set_id_checks", [](bool first) { g_checks_first = first; }, py::arg("first"));
}

}  // namespace tegula
