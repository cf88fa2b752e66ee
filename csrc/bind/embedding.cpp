#include <algorithm>
#include <cstring>

#include "../base/parallel.h"
#include "embedding_calls.h"
#include "tensors.h"

namespace tegula {
namespace {

struct OnProcessor {
  static Dropout dropout(Arrays&, double p, py::handle seed) {
    return make_dropout(p, py::cast<uint64_t>(seed));
  }
  static void embedding(const EmbeddingArgs& args, py::handle) {
    GilRelease unlocked;
    tegula::embedding(args);
  }
};

// An array of zeros. With few rows to be written to, its pages stay the system's, all zeros, until
// somebody does; with many, memory of the pool is cleared sooner than pages are found. For a tensor
// `like`, integers of its size.
py::array new_large_zeros(DType dtype, const std::vector<int64_t>& shape, int64_t rows_written,
                          py::handle like, int threads) {
  const bool is_array = py::isinstance<py::array>(like);
  const py::dtype type =
      is_array ? new_array(dtype, {0}, like).dtype() : py::dtype(message("i", item_size(dtype)));
  if (rows_written < shape[0] / 8) {
    return py::module_::import("numpy").attr("zeros")(py::make_tuple(shape[0], shape[1]), type);
  }
  bool zeros;
  py::array made = new_array(type, shape, &zeros);
  if (!zeros) {
    const int64_t bytes = made.nbytes(), piece = int64_t{1} << 20;
    char* const data = static_cast<char*>(made.mutable_data());
    GilRelease unlocked;
    parallel_for((bytes + piece - 1) / piece, num_threads(threads), [&](int64_t i) {
      std::memset(data + i * piece, 0, static_cast<size_t>(std::min(piece, bytes - i * piece)));
    });
  }
  return made;
}

Result new_zeros(DType dtype, const std::vector<int64_t>& shape, int64_t rows_written,
                 py::handle like, int threads) {
  constexpr int64_t kLarge = int64_t{1} << 17;  // from here on the system maps memory of its own
  Result result;
  if (shape[0] * shape[1] * item_size(dtype) < kLarge) {
    result = new_result(like, dtype, shape);
    std::memset(result.view.data, 0, static_cast<size_t>(result.view.count() * item_size(dtype)));
    return result;
  }
  py::array made = new_large_zeros(dtype, shape, rows_written, like, threads);
  result.view = view_of(made, dtype);
  result.array = is_tensor(like) ? as_tensor(made, dtype) : std::move(made);
  return result;
}

EmbeddingGroups grouped(const EmbeddingBackwardArgs& args) {
  GilRelease unlocked;
  return group_places(args);
}

// Without `out`, a fresh array or tensor.
py::object backward(py::handle grad, py::handle ids, int64_t num_rows, int64_t padding_idx,
                    py::object ignore_id, double scale, double dropout_p, py::handle seed,
                    py::object out, int threads) {
  Arrays arrays;
  const EmbeddingBackwardArgs args = embedding_backward_args<OnProcessor>(
      arrays, grad, ids, num_rows, padding_idx, ignore_id, scale, dropout_p, seed, threads);
  const bool fresh = out.is_none();
  View target;
  if (!fresh) target = arrays.output(out, "out", args.grad.dtype, {num_rows, args.grad.size(0)});
  const EmbeddingGroups groups = grouped(args);
  if (fresh) {
    Result zeros =
        new_zeros(args.grad.dtype, {num_rows, args.grad.size(0)}, groups.rows, grad, threads);
    out = std::move(zeros.array);
    target = zeros.view;
  }
  GilRelease unlocked;
  embedding_backward(args, groups, target, fresh);
  return out;
}

// `new_rows`: makes the array of rows, given how many there are and their size; or None.
py::object backward_sparse(py::handle grad, py::handle ids, int64_t num_rows, int64_t padding_idx,
                           py::object ignore_id, double scale, double dropout_p, py::handle seed,
                           py::object new_rows, int threads) {
  Arrays arrays;
  const EmbeddingBackwardArgs args = embedding_backward_args<OnProcessor>(
      arrays, grad, ids, num_rows, padding_idx, ignore_id, scale, dropout_p, seed, threads);
  const EmbeddingGroups groups = grouped(args);
  py::array_t<int64_t> found(groups.rows);
  const std::vector<int64_t> shape{groups.rows, args.grad.size(0)};
  const py::object rows =
      new_rows.is_none() ? new_array(args.grad.dtype, shape, grad) : new_rows(shape[0], shape[1]);
  const View found_view = view_of(found, DType::kInt64);
  const View rows_view = arrays.output(rows, "rows", args.grad.dtype, shape);
  {
    GilRelease unlocked;
    embedding_backward_sparse(args, groups, found_view, rows_view);
  }
  return py::make_tuple(found, rows);
}

}  // namespace

void bind_embedding(py::module_& module) {
  define_embedding<OnProcessor>(module);
  module.def("embedding_backward", &backward, py::arg("grad"), py::arg("ids"), py::arg("num_rows"),
             py::arg("padding_idx"), py::arg("ignore_id"), py::arg("scale"), py::arg("dropout_p"),
             py::arg("seed"), py::arg("out"), py::arg("threads"));
  module.def("embedding_backward_sparse", &backward_sparse, py::arg("grad"), py::arg("ids"),
             py::arg("num_rows"), py::arg("padding_idx"), py::arg("ignore_id"), py::arg("scale"),
             py::arg("dropout_p"), py::arg("seed"), py::arg("new_rows"), py::arg("threads"));
}

}  // namespace tegula
