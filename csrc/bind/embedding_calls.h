// tg.embedding and tg.embedding_backward from Python to native arguments, wherever they run.
//
// Where::dropout    from the probability and the seed
// Where::embedding  runs EmbeddingArgs, without the GIL
#pragma once

#include "../embedding/embedding.h"
#include "../embedding/embedding_backward.h"
#include "arrays.h"

namespace tegula {

// The options that need no array: Python has brought them to this form.
template <class Where>
py::object embed(py::handle ids, py::handle weight, int64_t padding_idx, bool zero_pads,
                 py::object ignore_id, double scale, py::handle positions,
                 py::handle position_table, bool sinusoidal, py::handle segments,
                 py::handle segment_table, double dropout_p, py::handle seed, py::object out,
                 int threads) {
  Arrays arrays;
  EmbeddingArgs args;
  args.ids = arrays.input(ids, "ids");
  args.weight = arrays.input(weight, "weight");
  args.positions = arrays.optional_input(positions, "positions");
  args.position_table = arrays.optional_input(position_table, "position_table");
  args.segments = arrays.optional_input(segments, "segments");
  args.segment_table = arrays.optional_input(segment_table, "segment_table");
  args.sinusoidal = sinusoidal;
  args.zero_pads = zero_pads;
  args.padding_idx = padding_idx;
  args.has_ignored = !ignore_id.is_none();
  if (args.has_ignored) args.ignored = py::cast<int64_t>(ignore_id);
  args.scale = scale;
  args.dropout = Where::dropout(arrays, dropout_p, seed);
  args.threads = threads;

  if (args.weight.rank != 2) {
    throw ValueError(message("weight must have shape (V, D), got ", shape_text(args.weight)));
  }
  if (!is_float(args.weight.dtype)) {
    throw TypeError(message("weight must have a float dtype, got ", name_of(args.weight.dtype)));
  }
  if (args.ids.rank >= kMaxRank) {
    throw ValueError(message("ids may have at most ", kMaxRank - 1, " axes"));
  }
  std::vector<int64_t> shape(args.ids.shape, args.ids.shape + args.ids.rank);
  shape.push_back(args.weight.shape[1]);
  if (out.is_none()) {
    Result fresh = new_result(weight, args.weight.dtype, shape);
    args.out = fresh.view;
    out = std::move(fresh.array);
  } else {
    args.out = arrays.output(out, "out", args.weight.dtype, shape);
  }
  Where::embedding(args, weight);
  return out;
}

template <class Where>
EmbeddingBackwardArgs embedding_backward_args(Arrays& arrays, py::handle grad, py::handle ids,
                                              int64_t num_rows, int64_t padding_idx,
                                              py::object ignore_id, double scale, double dropout_p,
                                              py::handle seed, int threads) {
  EmbeddingBackwardArgs args;
  args.grad = arrays.input(grad, "grad");
  args.ids = arrays.input(ids, "ids");
  args.num_rows = num_rows;
  args.padding_idx = padding_idx;
  args.has_ignored = !ignore_id.is_none();
  if (args.has_ignored) args.ignored = py::cast<int64_t>(ignore_id);
  args.scale = scale;
  args.dropout = Where::dropout(arrays, dropout_p, seed);
  args.threads = threads;
  check_embedding_backward(args);
  return args;
}

template <class Where>
void define_embedding(py::module_& module) {
  module.def("embedding", &embed<Where>, py::arg("ids"), py::arg("weight"), py::arg("padding_idx"),
             py::arg("zero_pads"), py::arg("ignore_id"), py::arg("scale"), py::arg("positions"),
             py::arg("position_table"), py::arg("sinusoidal"), py::arg("segments"),
             py::arg("segment_table"), py::arg("dropout_p"), py::arg("seed"), py::arg("out"),
             py::arg("threads"));
}

}  // namespace tegula
