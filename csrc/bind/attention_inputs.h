// What forward and backward share: checks of the arrays and options of tg.attention, and the
// way from Python to AttentionArgs.
#pragma once

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../attention/attention.h"
#include "arrays.h"
#include "intervals.h"

namespace tegula {

// An array (..., H, L, X), whatever its layout in memory is called.
inline View heads_first(View view, const std::string& layout, const char* name) {
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
  View q, k, v;                    // (..., H, L, X)
  View given_q, given_k, given_v;  // as they were given
  py::handle like;                 // the array q
  DType dtype;
  std::string layout;
  int rank;  // of the arrays as they were given

  Inputs(Arrays& arrays, py::handle q_array, py::handle k_array, py::handle v_array,
         std::string name_of_layout)
      : like(q_array), layout(std::move(name_of_layout)) {
    if (layout != "bhld" && layout != "blhd" && layout != "lhd") {
      throw ValueError(message("layout must be 'bhld', 'blhd' or 'lhd', got '", layout, "'"));
    }
    given_q = arrays.input(q_array, "q"), given_k = arrays.input(k_array, "k");
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

// TypeError or ValueError unless the view holds one number a head.
inline void check_per_head(const View& view, int64_t heads, const char* name) {
  if (view.dtype != DType::kFloat64) throw TypeError(message(name, " must be float64 here"));
  if (view.rank != 1 || view.shape[0] != heads) {
    throw ValueError(
        message(name, " must have shape (", heads, ",), one entry a head, got ", shape_text(view)));
  }
}

// Everything beside q, k and v that says what attention computes.
struct Options {
  py::handle lo, hi, dense, bias, alibi, sinks;
  std::optional<double> scale;
  double softcap, dropout_p;
  py::handle seed;
};

// AttentionArgs without outputs, and the numbers it points to. `Where` is where the call runs, see
// attention_calls.h.
template <class Where>
struct Call {
  AttentionArgs a;
  typename Where::PerHead slopes, sinks;

  Call(Arrays& arrays, const Inputs& in, const Options& o)
      : slopes(arrays, o.alibi, in.q.size(2), "alibi"),
        sinks(arrays, o.sinks, in.q.size(2), "sinks") {
    a.q = in.q, a.k = in.k, a.v = in.v;
    a.batch = in.batch(), a.heads = in.q.size(2), a.key_heads = in.k.size(2);
    a.q_len = in.q.size(1), a.k_len = in.k.size(1);
    a.dim = in.q.size(0), a.value_dim = in.v.size(0);
    a.scale = o.scale ? *o.scale : a.dim > 0 ? 1.0 / std::sqrt(static_cast<double>(a.dim)) : 1.0;
    // Beyond these no float32 can tell a cap from none, or the capped scores from 0.
    constexpr double kTightest = 1e-30, kLoosest = 1e30;
    a.softcap = o.softcap <= 0 || o.softcap > kLoosest ? 0.0 : std::max(o.softcap, kTightest);
    a.dropout = Where::dropout(arrays, o.dropout_p, o.seed);
    read_mask(arrays, o);
    if (!o.bias.is_none()) read_bias(arrays, o.bias);
    a.alibi = slopes.values, a.sinks = sinks.values;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  void read_mask(Arrays& arrays, const Options& o) {
    View pairs;
    pairs.rank = 4;
    pairs.shape[0] = a.batch, pairs.shape[1] = a.heads;
    pairs.shape[2] = a.q_len, pairs.shape[3] = a.k_len;
    if (!o.lo.is_none()) {
      IntervalViews rows(arrays.input(o.lo, "lo"), arrays.input(o.hi, "hi"));
      rows.spread_over(pairs);
      a.lo = rows.lo, a.hi = rows.hi, a.gap_lo = rows.gap_lo, a.gap_hi = rows.gap_hi;
    }
    if (!o.dense.is_none()) {
      a.dense = spread(arrays.input(o.dense, "dense"), "dense", DType::kBool, 4, pairs);
    }
  }

  void read_bias(Arrays& arrays, py::handle bias) {
    a.bias = arrays.input(bias, "bias");
    if (!is_float(a.bias.dtype)) {
      throw TypeError(message("bias must be a float array, got ", tegula::name_of(a.bias.dtype),
                              "; a bool array belongs in mask="));
    }
    std::vector<int64_t> scores(a.q.shape, a.q.shape + a.q.rank - 1);
    scores.push_back(a.k_len);
    if (a.bias.rank != a.q.rank || !std::equal(scores.begin(), scores.end(), a.bias.shape)) {
      throw ValueError(message("bias must have been broadcast to (..., ", a.heads, ", ", a.q_len,
                               ", ", a.k_len, "), got ", shape_text(a.bias)));
    }
  }
};

// An array (..., H, Lq) as (..., H, Lq, 1).
inline View with_column(View view, const char* name) {
  view.shape[view.rank] = 1, view.stride[view.rank] = 0;
  ++view.rank;
  return heads_first(view, "bhld", name);
}

// A result (..., H, Lq, X) beside out, whatever the layout: fresh, or the caller's.
// `wanted` is False, True, or the array to write to; the view is empty for False.
struct Extra {
  py::object array;
  View view;

  Extra(Arrays& arrays, const Inputs& in, py::handle wanted, const char* name, DType dtype,
        std::initializer_list<int64_t> columns) {
    if (wanted.is_none() || wanted.ptr() == Py_False) return;
    const std::vector<int64_t> shape = in.heads_shape(columns);
    if (wanted.ptr() == Py_True) {
      Result fresh = new_result(in.like, dtype, shape);
      view = fresh.view;
      array = std::move(fresh.array);
    } else {
      view = arrays.output(wanted, name, dtype, shape);
      array = py::reinterpret_borrow<py::object>(wanted);
    }
    view = columns.size() == 0 ? with_column(view, name) : heads_first(view, "bhld", name);
  }
};

}  // namespace tegula
