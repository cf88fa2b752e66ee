#include "axes.h"

#include <algorithm>

#include "check.h"

namespace tegula {

View collapsed(const View& view) {
  View result = view;
  result.rank = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 1) continue;
    const int last = result.rank - 1;
    if (last >= 0 && result.stride[last] == view.shape[axis] * view.stride[axis]) {
      result.shape[last] *= view.shape[axis];
      result.stride[last] = view.stride[axis];
    } else {
      result.shape[result.rank] = view.shape[axis];
      result.stride[result.rank] = view.stride[axis];
      ++result.rank;
    }
  }
  return result;
}

View broadcast_to(const View& view, int rank, const int64_t* shape, const char* name) {
  View result = view;
  result.rank = rank;
  const int added = rank - view.rank;
  bool fits = added >= 0;
  for (int axis = 0; fits && axis < rank; ++axis) {
    const int from = axis - added;
    const int64_t extent = from < 0 ? 1 : view.shape[from];
    fits = extent == shape[axis] || extent == 1;
    result.shape[axis] = shape[axis];
    result.stride[axis] = extent == 1 ? 0 : view.stride[from];
  }
  if (!fits) {
    View wanted;
    wanted.rank = rank;
    std::copy(shape, shape + rank, wanted.shape);
    throw ValueError(message(name, " has shape ", shape_text(view),
                             ", which does not broadcast to ", "the shape of ids, ",
                             shape_text(wanted)));
  }
  return result;
}

std::string place_text(const View& view, int64_t index) {
  std::string text;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    text = std::to_string(index % view.shape[axis]) + (text.empty() ? "" : ", ") + text;
    index /= view.shape[axis];
  }
  return text.empty() ? text : "[" + text + "]";
}

}  // namespace tegula
