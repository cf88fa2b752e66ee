// tg.explain: from Python to the plans of attention, without arrays but those of the mask.
#include "../attention/explain.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>

#include "intervals.h"

namespace tegula {
namespace {

// An array (B, H, L, X) that is nowhere: its rows all lie at one address.
View nowhere(DType dtype, int64_t batch, int64_t heads, int64_t length, int64_t width) {
  View view;
  view.dtype = dtype, view.rank = 4;
  view.shape[0] = batch, view.shape[1] = heads, view.shape[2] = length, view.shape[3] = width;
  std::fill(view.stride, view.stride + view.rank, 0);
  return view;
}

// `sizes`: B, H, G, Lq, Lk, D, Dv.
py::dict attention_plan(py::handle lo, py::handle hi, py::handle dense,
                        const std::array<int64_t, 7>& sizes, const std::string& dtype,
                        bool backward, int threads) {
  Arrays arrays;
  AttentionGradArgs a;
  std::tie(a.batch, a.heads, a.key_heads, a.q_len, a.k_len, a.dim, a.value_dim) =
      std::tuple_cat(sizes);  // in this order
  const DType type = dtype == "float64"   ? DType::kFloat64
                     : dtype == "float16" ? DType::kFloat16
                     : dtype == "float32" ? DType::kFloat32
                                          : DType::kBFloat16;
  a.q = nowhere(type, a.batch, a.heads, a.q_len, a.dim);
  a.k = nowhere(type, a.batch, a.key_heads, a.k_len, a.dim);
  a.v = nowhere(type, a.batch, a.key_heads, a.k_len, a.value_dim);
  View pairs = nowhere(DType::kBool, a.batch, a.heads, a.q_len, a.k_len);
  if (!lo.is_none()) {
    IntervalViews rows(arrays.input(lo, "lo"), arrays.input(hi, "hi"));
    rows.spread_over(pairs);
    a.lo = rows.lo, a.hi = rows.hi, a.gap_lo = rows.gap_lo, a.gap_hi = rows.gap_hi;
  }
  if (!dense.is_none()) {
    a.dense = spread(arrays.input(dense, "dense"), "dense", DType::kBool, 4, pairs);
  }
  AttentionPlan plan;
  {
    GilRelease unlocked;
    plan = backward ? explain_backward(a, threads) : explain_forward(a, threads);
  }
  py::dict found;
  found["full"] = plan.tiles.full, found["mixed"] = plan.tiles.mixed;
  found["skipped"] = plan.tiles.skipped;
  found["blocks"] = plan.tiles.blocks, found["few"] = plan.tiles.few;
  found["block_rows"] = plan.block_rows, found["key_tile"] = plan.key_tile;
  found["pairs"] = plan.pairs, found["dot"] = plan.dot;
  found["costs"] =
      py::array_t<double>(static_cast<py::ssize_t>(plan.costs.size()), plan.costs.data());
  found["shared_units"] = plan.shared_units, found["key_chunk_tasks"] = plan.key_chunk_tasks;
  found["threads"] = plan.threads, found["imbalance"] = plan.imbalance;
  return found;
}

}  // namespace

void bind_explain(py::module_& module) {
  module.def("attention_plan", &attention_plan, py::arg("lo"), py::arg("hi"), py::arg("dense"),
             py::arg("sizes"), py::arg("dtype"), py::arg("backward"), py::arg("threads"));
}

}  // namespace tegula
