// Checks of tg.attention and the way from NumPy arrays to AttentionArgs.
#include "../attention/attention.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "../base/parallel.h"
#include "arrays.h"

namespace tegula {
namespace {

// An array (..., H, L, X), whatever its layout in memory is called.
View heads_first(View view, const std::string& layout, const char* name) {
  const int least = layout == "bhld" ? 2 : 3;
  if (view.rank < least || (layout == "lhd" && view.rank != 3)) {
    throw ValueError(message(name, " has shape ", shape_text(view), "; layout '", layout,
                             "' needs ", layout == "lhd" ? "exactly " : "at least ", least,
                             " axes"));
  }
  if (view.rank == 2) {  // one head
    view.shape[2] = view.shape[1], view.stride[2] = view.stride[1];
    view.shape[1] = view.shape[0], view.stride[1] = view.stride[0];
    view.shape[0] = 1, view.stride[0] = 0;
    view.rank = 3;
  }
  if (layout != "bhld") {
    std::swap(view.shape[view.rank - 2], view.shape[view.rank - 3]);
    std::swap(view.stride[view.rank - 2], view.stride[view.rank - 3]);
  }
  return view;
}

// q, k and v of one call, checked against each other.
struct Inputs {
  View q, k, v;
  DType dtype;
  std::string layout;
  int rank;  // of the arrays as they were given

  Inputs(Arrays& arrays, py::handle q_array, py::handle k_array, py::handle v_array,
         std::string name_of_layout)
      : layout(std::move(name_of_layout)) {
    if (layout != "bhld" && layout != "blhd" && layout != "lhd") {
      throw ValueError(message("layout must be 'bhld', 'blhd' or 'lhd', got '", layout, "'"));
    }
    const View given_q = arrays.input(q_array, "q"), given_k = arrays.input(k_array, "k"),
               given_v = arrays.input(v_array, "v");
    dtype = given_q.dtype;
    rank = given_q.rank;
    if (!is_float(dtype)) {
      throw TypeError(
          message("q must be float64, float32, float16 or bfloat16, got ", tegula::name_of(dtype)));
    }
    for (const auto& [view, name] : {std::pair{&given_k, "k"}, std::pair{&given_v, "v"}}) {
      if (view->dtype != dtype) {
        throw TypeError(message(name, " has dtype ", tegula::name_of(view->dtype),
                                " but q has dtype ", tegula::name_of(dtype)));
      }
      if (view->rank != rank) {
        throw ValueError(message(name, " has shape ", shape_text(*view), " but q has shape ",
                                 shape_text(given_q), ": the number of axes differs"));
      }
    }
    q = heads_first(given_q, layout, "q");
    k = heads_first(given_k, layout, "k");
    v = heads_first(given_v, layout, "v");
    const auto fail = [&](const char* what, const View& view, const char* name) {
      throw ValueError(message(name, " has shape ", shape_text(view), " but q has shape ",
                               shape_text(given_q), ": ", what));
    };
    for (int axis = 0; axis < q.rank - 3; ++axis) {
      if (k.shape[axis] != q.shape[axis]) fail("the leading axes differ", given_k, "k");
      if (v.shape[axis] != q.shape[axis]) fail("the leading axes differ", given_v, "v");
    }
    if (k.size(0) != q.size(0)) fail("the head sizes differ", given_k, "k");
    const auto against_k = [&](const char* what) {
      throw ValueError(message("v has shape ", shape_text(given_v), " but k has shape ",
                               shape_text(given_k), ": ", what));
    };
    if (v.size(1) != k.size(1)) against_k("the numbers of keys differ");
    if (v.size(2) != k.size(2)) against_k("the numbers of heads differ");
    const int64_t heads = q.size(2), key_heads = k.size(2);
    if (heads > 0 && (key_heads == 0 || heads % key_heads != 0)) {
      throw ValueError(message("q has ", heads, " heads, which is not a multiple of the ",
                               key_heads, " heads of k and v (shapes ", shape_text(given_q),
                               " and ", shape_text(given_k), ")"));
    }
    for (const auto& [view, name] : {std::pair{&q, "q"}, std::pair{&k, "k"}}) {
      for (const int axis : {1, 2}) {
        if (view->size(axis) <= std::numeric_limits<int32_t>::max() - kKeyChunk) continue;
        throw ValueError(message(name, " has ", view->size(axis), axis == 1 ? " rows" : " heads",
                                 "; at most 2^31 - 1025 are possible"));
      }
    }
  }

  int64_t batch() const {
    int64_t n = 1;
    for (int axis = 0; axis < q.rank - 3; ++axis) n *= q.shape[axis];
    return n;
  }
  std::vector<int64_t> lead() const { return {q.shape, q.shape + (rank > 2 ? q.rank - 3 : 0)}; }

  // Shape of an array with the rows of q and `width` columns, in q's layout.
  std::vector<int64_t> rows_shape(int64_t width) const {
    std::vector<int64_t> shape = lead();
    if (rank > 2) shape.push_back(q.size(2));
    shape.push_back(q.size(1));
    if (layout != "bhld") std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    shape.push_back(width);
    return shape;
  }
  // Shape (..., H, Lq) plus `more`, whatever the layout.
  std::vector<int64_t> heads_shape(std::initializer_list<int64_t> more) const {
    std::vector<int64_t> shape = lead();
    if (rank > 2) shape.push_back(q.size(2));
    shape.push_back(q.size(1));
    shape.insert(shape.end(), more);
    return shape;
  }
};

std::vector<double> per_head(Arrays& arrays, py::handle array, int64_t heads, const char* name) {
  if (array.is_none()) return {};
  const View view = arrays.input(array, name);
  if (view.dtype != DType::kFloat64) throw TypeError(message(name, " must be float64 here"));
  if (view.rank != 1 || view.shape[0] != heads) {
    throw ValueError(
        message(name, " must have shape (", heads, ",), one entry a head, got ", shape_text(view)));
  }
  std::vector<double> values(static_cast<size_t>(heads));
  for (int64_t h = 0; h < heads; ++h) {
    values[static_cast<size_t>(h)] = *view.at<double>(h * view.stride[0]);
  }
  return values;
}

py::tuple attention_sizes(py::handle q, py::handle k, py::handle v, const std::string& layout) {
  Arrays arrays;
  const Inputs in(arrays, q, k, v, layout);
  return py::make_tuple(in.batch(), in.q.size(2), in.q.size(1), in.k.size(1),
                        py::tuple(py::cast(in.lead())));
}

py::object attention(py::handle q, py::handle k, py::handle v, py::handle out, py::handle lo,
                     py::handle hi, py::handle dense, py::handle bias, py::handle alibi,
                     py::handle sinks, std::optional<double> scale, double softcap,
                     double dropout_p, uint64_t seed, const std::string& layout, bool return_lse,
                     bool return_weights, int threads) {
  Arrays arrays;
  const Inputs in(arrays, q, k, v, layout);
  AttentionArgs a;
  a.q = in.q, a.k = in.k, a.v = in.v;
  a.batch = in.batch(), a.heads = in.q.size(2), a.key_heads = in.k.size(2);
  a.q_len = in.q.size(1), a.k_len = in.k.size(1);
  a.dim = in.q.size(0), a.value_dim = in.v.size(0);
  a.scale = scale ? *scale : a.dim > 0 ? 1.0 / std::sqrt(static_cast<double>(a.dim)) : 1.0;
  // Beyond these no float32 can tell a cap from none, or the capped scores from 0.
  constexpr double kTightest = 1e-30, kLoosest = 1e30;
  a.softcap = softcap <= 0 || softcap > kLoosest ? 0.0 : std::max(softcap, kTightest);
  a.dropout = make_dropout(dropout_p, seed);
  if (!lo.is_none() || !dense.is_none()) {
    View pairs;
    pairs.rank = 4;
    pairs.shape[0] = a.batch, pairs.shape[1] = a.heads;
    pairs.shape[2] = a.q_len, pairs.shape[3] = a.k_len;
    if (!lo.is_none()) {
      a.lo = spread(arrays.input(lo, "lo"), "lo", DType::kInt32, 3, pairs);
      a.hi = spread(arrays.input(hi, "hi"), "hi", DType::kInt32, 3, pairs);
    }
    if (!dense.is_none()) {
      a.dense = spread(arrays.input(dense, "dense"), "dense", DType::kBool, 4, pairs);
    }
  }
  if (!bias.is_none()) {
    a.bias = arrays.input(bias, "bias");
    if (!is_float(a.bias.dtype)) {
      throw TypeError(message("bias must be a float array, got ", name_of(a.bias.dtype),
                              "; a bool array belongs in mask="));
    }
    std::vector<int64_t> scores(a.q.shape, a.q.shape + a.q.rank - 1);
    scores.push_back(a.k_len);
    if (a.bias.rank != a.q.rank || !std::equal(scores.begin(), scores.end(), a.bias.shape)) {
      throw ValueError(message("bias must have been broadcast to (..., ", a.heads, ", ", a.q_len,
                               ", ", a.k_len, "), got ", shape_text(a.bias)));
    }
  }
  const std::vector<double> slopes = per_head(arrays, alibi, a.heads, "alibi");
  const std::vector<double> sink_logits = per_head(arrays, sinks, a.heads, "sinks");
  if (!alibi.is_none()) a.alibi = slopes.data();
  if (!sinks.is_none()) a.sinks = sink_logits.data();

  const std::vector<int64_t> out_shape = in.rows_shape(a.value_dim);
  py::object result;
  if (out.is_none()) {
    py::array fresh = new_array(in.dtype, out_shape, q);
    a.out = view_of(fresh, in.dtype);
    result = std::move(fresh);
  } else {
    a.out = arrays.output(out, "out", in.dtype, out_shape);
    result = py::reinterpret_borrow<py::object>(out);
  }
  a.out = heads_first(a.out, layout, "out");

  py::object lse, weights, norms;
  const DType type = in.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  if (return_lse) {
    py::array fresh = new_array(type, in.heads_shape({}));
    // One more axis, so that it reads like (..., H, Lq, 1).
    a.lse = view_of(fresh, type);
    a.lse.shape[a.lse.rank] = 1, a.lse.stride[a.lse.rank] = 0;
    ++a.lse.rank;
    a.lse = heads_first(a.lse, "bhld", "lse");
    lse = std::move(fresh);
  }
  if (return_weights) {
    py::array fresh = new_array(in.dtype, in.heads_shape({a.k_len}), q);
    a.weights = heads_first(view_of(fresh, in.dtype), "bhld", "weights");
    py::array fresh_norms = new_array(type, in.heads_shape({2}));
    a.norms = heads_first(view_of(fresh_norms, type), "bhld", "norms");
    norms = std::move(fresh_norms);
    weights = std::move(fresh);
  }
  {
    GilRelease unlocked;
    attention_forward(a, threads);
  }
  if (return_lse && return_weights) return py::make_tuple(result, lse, weights);
  if (return_lse) return py::make_tuple(result, lse);
  if (return_weights) return py::make_tuple(result, weights);
  return result;
}

}  // namespace

void bind_attention(py::module_& module) {
  module.def("attention_sizes", &attention_sizes, py::arg("q"), py::arg("k"), py::arg("v"),
             py::arg("layout"));
  module.def("attention", &attention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"),
             py::arg("lo"), py::arg("hi"), py::arg("dense"), py::arg("bias"), py::arg("alibi"),
             py::arg("sinks"), py::arg("scale"), py::arg("softcap"), py::arg("dropout_p"),
             py::arg("seed"), py::arg("layout"), py::arg("return_lse"), py::arg("return_weights"),
             py::arg("threads"));
}

}  // namespace tegula
