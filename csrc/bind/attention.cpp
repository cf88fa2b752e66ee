// tg.attention: from Python to attention_forward.
#include "attention_inputs.h"

namespace tegula {
namespace {

py::tuple attention_sizes(py::handle q, py::handle k, py::handle v, const std::string& layout) {
  Arrays arrays;
  const Inputs in(arrays, q, k, v, layout);
  return py::make_tuple(in.batch(), in.q.size(2), in.q.size(1), in.k.size(1),
                        py::tuple(py::cast(in.lead())));
}

// A fresh `out`. For tensors q's axes say in which order its axes lie in memory.
Result new_out(const Inputs& in, int64_t value_dim) {
  const View& q = in.given_q;
  if (q.size(0) == value_dim) return new_result_like(in.like, q);
  const bool heads_inside = q.rank > 2 && q.step(2) < q.step(1);
  View model;
  model.dtype = q.dtype, model.rank = q.rank;
  int64_t step = 1;
  for (int i = 0; i < q.rank; ++i) {  // from the inside
    int axis = q.rank - 1 - i;
    if (heads_inside && (i == 1 || i == 2)) axis = q.rank - 1 - (3 - i);
    model.shape[axis] = i == 0 ? value_dim : q.shape[axis];
    model.stride[axis] = step;
    step *= std::max<int64_t>(1, model.shape[axis]);
  }
  return new_result_like(in.like, model);
}

// `out` is None or an array; `lse` and `weights` are bools or arrays, see Extra.
py::object attention(py::handle q, py::handle k, py::handle v, py::handle out, py::handle lo,
                     py::handle hi, py::handle dense, py::handle bias, py::handle alibi,
                     py::handle sinks, std::optional<double> scale, double softcap,
                     double dropout_p, uint64_t seed, const std::string& layout, py::handle lse,
                     py::handle weights, int threads) {
  Arrays arrays;
  const Inputs in(arrays, q, k, v, layout);
  Call call(arrays, in, {lo, hi, dense, bias, alibi, sinks, scale, softcap, dropout_p, seed});
  AttentionArgs& a = call.a;

  py::object result;
  if (out.is_none()) {
    Result fresh = new_out(in, a.value_dim);
    a.out = fresh.view;
    result = std::move(fresh.array);
  } else {
    a.out = arrays.output(out, "out", in.dtype, in.rows_shape(a.value_dim));
    result = py::reinterpret_borrow<py::object>(out);
  }
  a.out = heads_first(a.out, layout, "out");

  const DType type = in.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const Extra log_sums(arrays, in, lse, "lse", type, {});
  const Extra shares(arrays, in, weights, "weights", in.dtype, {a.k_len});
  const Extra norms(arrays, in, py::bool_(static_cast<bool>(shares.view)), "norms", type, {2});
  a.lse = log_sums.view, a.weights = shares.view, a.norms = norms.view;
  {
    GilRelease unlocked;
    attention_forward(a, threads);
  }
  if (a.lse && a.weights) return py::make_tuple(result, log_sums.array, shares.array);
  if (a.lse) return py::make_tuple(result, log_sums.array);
  if (a.weights) return py::make_tuple(result, shares.array);
  return result;
}

}  // namespace

void bind_attention(py::module_& module) {
  module.def("attention_sizes", &attention_sizes, py::arg("q"), py::arg("k"), py::arg("v"),
             py::arg("layout"));
  module.def("attention", &attention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"),
             py::arg("lo"), py::arg("hi"), py::arg("dense"), py::arg("bias"), py::arg("alibi"),
             py::arg("sinks"), py::arg("scale"), py::arg("softcap"), py::arg("dropout_p"),
             py::arg("seed"), py::arg("layout"), py::arg("lse"), py::arg("weights"),
             py::arg("threads"));
}

}  // namespace tegula
