// Arithmetic of Views that arrays of every kind need: nothing here reads an element.
#include <algorithm>

#include "arrays.h"

namespace tegula {
namespace {

// First byte and one past the last byte that an array reaches.
std::pair<const char*, const char*> extent(const View& view) {
  const int64_t item = item_size(view.dtype);
  const char* low = view.at<const char>(0);
  const char* high = low + item;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) return {low, low};
    const int64_t reach = (view.shape[axis] - 1) * view.stride[axis] * item;
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

// Whether every element between the first and the last is the tensor's, and only once.
bool without_gaps(const View& view) {
  if (view.count() == 0) return true;
  int64_t expected = 1;
  for (bool found = true; found;) {  // the axis that steps over those found so far
    found = false;
    for (int axis = 0; axis < view.rank && !found; ++axis) {
      found = view.shape[axis] > 1 && view.stride[axis] == expected;
      if (found) expected *= view.shape[axis];
    }
  }
  return expected == view.count();
}

// An array of the same elements that is never read: NumPy knows how to compare them.
py::array stand_in(const View& view) {
  const int64_t item = item_size(view.dtype);
  std::vector<int64_t> shape(view.shape, view.shape + view.rank), strides;
  for (int axis = 0; axis < view.rank; ++axis) strides.push_back(view.stride[axis] * item);
  return py::array(py::dtype(message("u", item)), shape, strides, view.data, py::none());
}

}  // namespace

bool aligned(const View& view) {
  return reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(item_size(view.dtype)) ==
         0;
}

View spread(View view, const char* name, DType dtype, int rank, const View& sizes) {
  if (view.dtype != dtype) {
    throw TypeError(message(name, " must be ", name_of(dtype), ", got ", name_of(view.dtype)));
  }
  bool fits = view.rank == rank;
  for (int axis = 0; fits && axis < rank; ++axis) {
    if (view.shape[axis] == 1) view.stride[axis] = 0;
    fits = view.shape[axis] == 1 || view.shape[axis] == sizes.shape[axis];
  }
  if (!fits) {
    throw ValueError(
        message(name, " has shape ", shape_text(view), ", which does not fit ", shape_text(sizes)));
  }
  std::copy(sizes.shape, sizes.shape + rank, view.shape);
  return view;
}

void check_result(const View& view, const char* name, DType dtype,
                  const std::vector<int64_t>& shape) {
  if (view.dtype != dtype) {
    throw TypeError(
        message(name, " must have dtype ", name_of(dtype), ", got ", name_of(view.dtype)));
  }
  View expected;
  expected.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), expected.shape);
  if (view.rank != expected.rank || !std::equal(shape.begin(), shape.end(), view.shape)) {
    throw ValueError(
        message(name, " must have shape ", shape_text(expected), ", got ", shape_text(view)));
  }
}

void Arrays::add_output(const View& view, const char* name) {
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.count() > 0 && view.stride[axis] == 0 && view.shape[axis] > 1) {
      throw ValueError(message(name, " has stride 0 on axis ", axis, ": its elements overlap"));
    }
  }
  check_overlap(view, name);
  views_.push_back({view, name});  // the next output must not lie on this one
}

void Arrays::check_overlap(const View& out, const char* name) const {
  const auto [low, high] = extent(out);
  for (const Taken& taken : views_) {
    const auto [begin, end] = extent(taken.view);
    if (low >= end || begin >= high) continue;
    // Interleaved arrays may share an extent and no element; beyond the bound on the work
    // of finding out, they count as sharing.
    const py::module_ numpy = py::module_::import("numpy");
    bool shared = true;
    try {
      shared = py::cast<bool>(numpy.attr("shares_memory")(stand_in(out), stand_in(taken.view),
                                                          py::arg("max_work") = 1000));
    } catch (py::error_already_set& error) {
      if (!error.matches(numpy.attr("exceptions").attr("TooHardError"))) throw;
    }
    if (shared) throw ValueError(message(name, " shares memory with ", taken.name));
  }
}

void set_strides_like(View& view, const View& model) {
  if (without_gaps(model)) {
    std::copy(model.stride, model.stride + model.rank, view.stride);
    return;
  }
  // Where strides do not say which axis is the inner one, the later axis is.
  const auto inner = [&](int a, int b) {
    if (model.stride[a] == 0 || model.stride[b] == 0) return 0;
    if (model.stride[a] != model.stride[b]) return model.stride[a] < model.stride[b] ? 1 : -1;
    return model.shape[a] > model.shape[b] ? -1 : 0;
  };
  int order[kMaxRank];  // from the inside
  for (int i = 0; i < model.rank; ++i) order[i] = model.rank - 1 - i;
  for (int i = 1; i < model.rank; ++i) {
    int at = i;
    for (int before = i - 1; before >= 0; --before) {
      const int told = inner(order[before], order[at]);
      if (told > 0) break;
      if (told < 0) std::swap(order[before], order[at]), at = before;
    }
  }
  int64_t step = 1;
  for (int i = 0; i < model.rank; ++i) {
    view.stride[order[i]] = step;
    step *= std::max<int64_t>(1, model.shape[order[i]]);
  }
}

}  // namespace tegula
