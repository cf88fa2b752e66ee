// Positional encodings on a GPU. `out` is always the caller's.
#include "../../positional_encoding/cuda/positional_encoding_cuda.h"
#include "../positional_encoding_calls.h"
#include "device_arrays.h"

namespace tegula {
namespace {

py::object encode(py::handle positions, int64_t dim, double base, bool split, bool inclusive,
                  py::handle, py::object out, int) {
  Arrays arrays;
  PositionalEncodingArgs args =
      positional_encoding_args(arrays, positions, dim, base, split, inclusive);
  const DType type = look_at(out, "out").dtype;
  if (!is_float(type)) throw TypeError(message("dtype must be a float type, got ", name_of(type)));
  args.out = arrays.output(out, "out", type, encoding_shape(args.positions, dim));
  Place place = place_of(out);
  const Scratch scratch(out, positional_encoding_workspace(args));
  place.workspace = scratch.data();
  GilRelease unlocked;
  positional_encoding(args, place);
  return out;
}

}  // namespace

void bind_positional_encoding(py::module_& module) { define_positional_encoding(module, &encode); }

}  // namespace tegula
