// tg.attention_backward: from Python to attention_backward.
#include "../attention/backward.h"
#include "attention_inputs.h"

namespace tegula {
namespace {

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

void check_shape(const View& view, const char* name, const std::vector<int64_t>& shape,
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
py::tuple attention_backward_call(py::handle grad_out, py::handle q, py::handle k, py::handle v,
                                  py::handle out, py::handle lse, py::handle lo, py::handle hi,
                                  py::handle dense, py::handle bias, py::handle alibi,
                                  py::handle sinks, std::optional<double> scale, double softcap,
                                  double dropout_p, uint64_t seed, const std::string& layout,
                                  py::handle dq, py::handle dk, py::handle dv, py::handle dbias,
                                  py::handle grad_lse, int threads) {
  Arrays arrays;
  const Inputs in(arrays, q, k, v, layout);
  const Call call(arrays, in, {lo, hi, dense, bias, alibi, sinks, scale, softcap, dropout_p, seed});
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
    py::array fresh = new_array(DType::kFloat64, {a.heads});
    a.dsinks = static_cast<double*>(fresh.mutable_data());
    sums_of_sinks = std::move(fresh);
  }
  {
    GilRelease unlocked;
    attention_backward(a, threads);
  }
  return py::make_tuple(to_q.array, to_k.array, to_v.array, sums_of_sinks);
}

}  // namespace

void bind_attention_backward(py::module_& module) {
  module.def("attention_backward", &attention_backward_call, py::arg("grad_out"), py::arg("q"),
             py::arg("k"), py::arg("v"), py::arg("out"), py::arg("lse"), py::arg("lo"),
             py::arg("hi"), py::arg("dense"), py::arg("bias"), py::arg("alibi"), py::arg("sinks"),
             py::arg("scale"), py::arg("softcap"), py::arg("dropout_p"), py::arg("seed"),
             py::arg("layout"), py::arg("dq"), py::arg("dk"), py::arg("dv"), py::arg("dbias"),
             py::arg("grad_lse"), py::arg("threads"));
}

}  // namespace tegula
