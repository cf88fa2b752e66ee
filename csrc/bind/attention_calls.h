// tg.attention and tg.attention_backward from Python to native arguments, wherever they run.
//
// Where::PerHead    one number a head, from an array or None: values, H of them or null
// Where::dropout    from the probability and the seed
// Where::kNorms     whether weights need norms
// Where::forward    runs AttentionArgs, without the GIL
// Where::backward   runs AttentionGradArgs
#pragma once

#include "../attention/backward.h"
#include "attention_inputs.h"

namespace tegula {

inline py::tuple attention_sizes(py::handle q, py::handle k, py::handle v,
                                 const std::string& layout) {
  Arrays arrays;
  const Inputs in(arrays, q, k, v, layout);
  return py::make_tuple(in.batch(), in.q.size(2), in.q.size(1), in.k.size(1),
                        py::tuple(py::cast(in.lead())));
}

// A fresh `out`. For tensors q's axes say in which order its axes lie in memory.
inline Result new_out(const Inputs& in, int64_t value_dim) {
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
template <class Where>
py::object attention_call(py::handle q, py::handle k, py::handle v, py::handle out, py::handle lo,
                          py::handle hi, py::handle dense, py::handle bias, py::handle alibi,
                          py::handle sinks, std::optional<double> scale, double softcap,
                          double dropout_p, py::handle seed, const std::string& layout,
                          py::handle lse, py::handle weights, int threads) {
  Arrays arrays;
  const Inputs in(arrays, q, k, v, layout);
  Call<Where> call(arrays, in,
                   {lo, hi, dense, bias, alibi, sinks, scale, softcap, dropout_p, seed});
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
  const Extra norms(arrays, in, py::bool_(Where::kNorms && shares.view), "norms", type, {2});
  a.lse = log_sums.view, a.weights = shares.view, a.norms = norms.view;
  Where::forward(a, in.like, threads);
  if (a.lse && a.weights) return py::make_tuple(result, log_sums.array, shares.array);
  if (a.lse) return py::make_tuple(result, log_sums.array);
  if (a.weights) return py::make_tuple(result, shares.array);
  return result;
}

// A gradient like the input it belongs to: fresh, or the caller's array.
struct Gradient {
  py::object array;
  View view;

  Gradient(Arrays& arrays, const Inputs& in, py::handle given, const char* name, py::handle input,
           const View& input_view) {
    if (given.is_none()) {
      Result fresh = new_result_like(input, input_view);
      view = fresh.view;
      array = std::move(fresh.array);
    } else {
      view = arrays.output(given, name, in.dtype,
                           {input_view.shape, input_view.shape + input_view.rank});
      array = py::reinterpret_borrow<py::object>(given);
    }
    view = heads_first(view, in.layout, name);
  }
};

inline void check_shape(const View& view, const char* name, const std::vector<int64_t>& shape,
                        DType dtype) {
  if (view.dtype != dtype) {
    throw TypeError(
        message(name, " has dtype ", name_of(view.dtype), ", expected ", name_of(dtype)));
  }
  if (view.rank != static_cast<int>(shape.size()) ||
      !std::equal(shape.begin(), shape.end(), view.shape)) {
    View expected;
    expected.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), expected.shape);
    throw ValueError(
        message(name, " has shape ", shape_text(view), ", expected ", shape_text(expected)));
  }
}

// dq, dk and dv are None or arrays; dbias is None or a view that repeats as bias does.
template <class Where>
py::tuple attention_backward_call(py::handle grad_out, py::handle q, py::handle k, py::handle v,
                                  py::handle out, py::handle lse, py::handle lo, py::handle hi,
                                  py::handle dense, py::handle bias, py::handle alibi,
                                  py::handle sinks, std::optional<double> scale, double softcap,
                                  double dropout_p, py::handle seed, const std::string& layout,
                                  py::handle dq, py::handle dk, py::handle dv, py::handle dbias,
                                  py::handle grad_lse, int threads) {
  Arrays arrays;
  const Inputs in(arrays, q, k, v, layout);
  const Call<Where> call(arrays, in,
                         {lo, hi, dense, bias, alibi, sinks, scale, softcap, dropout_p, seed});
  AttentionGradArgs a;
  static_cast<AttentionArgs&>(a) = call.a;

  a.grad_out = arrays.input(grad_out, "grad_out");
  a.out = arrays.input(out, "out");
  a.lse = arrays.input(lse, "lse");
  check_shape(a.grad_out, "grad_out", in.rows_shape(a.value_dim), in.dtype);
  check_shape(a.out, "out", in.rows_shape(a.value_dim), in.dtype);
  const DType compute = in.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  check_shape(a.lse, "lse", in.heads_shape({}), compute);
  a.grad_out = heads_first(a.grad_out, layout, "grad_out");
  a.out = heads_first(a.out, layout, "out");
  a.lse = with_column(a.lse, "lse");
  if (!grad_lse.is_none()) {
    a.grad_lse = arrays.input(grad_lse, "grad_lse");
    check_shape(a.grad_lse, "grad_lse", in.heads_shape({}), compute);
    a.grad_lse = with_column(a.grad_lse, "grad_lse");
  }

  const Gradient to_q(arrays, in, dq, "dq", q, in.given_q);
  const Gradient to_k(arrays, in, dk, "dk", k, in.given_k);
  const Gradient to_v(arrays, in, dv, "dv", v, in.given_v);
  a.dq = to_q.view, a.dk = to_k.view, a.dv = to_v.view;
  if (!dbias.is_none()) {
    if (!a.bias) throw ValueError("dbias needs bias");
    // A view that repeats cannot be an output like others: NumPy calls it read-only.
    a.dbias = arrays.input(dbias, "dbias");
    if (!is_float(a.dbias.dtype)) throw TypeError("dbias must be a float array");
    check_shape(a.dbias, "dbias", {a.bias.shape, a.bias.shape + a.bias.rank}, a.dbias.dtype);
  }
  py::object sums_of_sinks = py::none();
  if (!sinks.is_none()) {
    Result fresh = new_result(in.like, DType::kFloat64, {a.heads});
    a.dsinks = fresh.view.at<double>(0);
    sums_of_sinks = std::move(fresh.array);
  }
  Where::backward(a, in.like, threads);
  return py::make_tuple(to_q.array, to_k.array, to_v.array, sums_of_sinks);
}

template <class Where>
void define_attention(py::module_& module) {
  module.def("attention_sizes", &attention_sizes, py::arg("q"), py::arg("k"), py::arg("v"),
             py::arg("layout"));
  module.def("attention", &attention_call<Where>, py::arg("q"), py::arg("k"), py::arg("v"),
             py::arg("out"), py::arg("lo"), py::arg("hi"), py::arg("dense"), py::arg("bias"),
             py::arg("alibi"), py::arg("sinks"), py::arg("scale"), py::arg("softcap"),
             py::arg("dropout_p"), py::arg("seed"), py::arg("layout"), py::arg("lse"),
             py::arg("weights"), py::arg("threads"));
  module.def("attention_backward", &attention_backward_call<Where>, py::arg("grad_out"),
             py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"), py::arg("lse"),
             py::arg("lo"), py::arg("hi"), py::arg("dense"), py::arg("bias"), py::arg("alibi"),
             py::arg("sinks"), py::arg("scale"), py::arg("softcap"), py::arg("dropout_p"),
             py::arg("seed"), py::arg("layout"), py::arg("dq"), py::arg("dk"), py::arg("dv"),
             py::arg("dbias"), py::arg("grad_lse"), py::arg("threads"));
}

}  // namespace tegula
