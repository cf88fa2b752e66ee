#include <string>

#include "../../cuda/launch.h"
#include "mask_cuda.h"
#include "mask_params.h"

namespace tegula {
namespace {

int64_t rows_of(const View& array) { return array.shape[0] * array.shape[1] * array.shape[2]; }

LaunchShape shape_for(int64_t warps) {
  return {(warps + kMaskWarps - 1) / kMaskWarps, kMaskThreads, 0};
}

// The bits of minus infinity, of the element's width.
uint64_t minus_infinity(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 0xFFF0000000000000u;
    case DType::kFloat32: return 0xFF800000u;
    case DType::kFloat16: return 0xFC00u;
    default: return 0xFF80u;
  }
}

}  // namespace

void mask_fill(const MaskFillArgs& args, const Place& place) {
  if (args.out.count() == 0) return;
  MaskFillParams params{args};
  const bool is_bool = args.out.dtype == DType::kBool;
  params.hidden = is_bool ? 0 : minus_infinity(args.out.dtype);
  params.visible = is_bool ? 1 : 0;
  const int64_t item = item_size(args.out.dtype), n = args.out.shape[3];
  const bool vectors = args.out.stride[3] == 1 || n == 1;
  const int64_t elements = vectors ? 16 / item : 1;  // that a lane stores together
  // A row that does not begin on an aligned address has one chunk more.
  const int64_t chunks = (n + elements - 1) / elements + (elements > 1 ? 1 : 0);
  params.pieces = (chunks + 32 * kFillStores - 1) / (32 * kFillStores);
  launch(place, "mask_fill_" + std::to_string(8 * item) + (vectors ? "_vectors" : "_elements"),
         shape_for(rows_of(args.out) * params.pieces), params);
}

void mask_scan(const MaskScanArgs& args, const Place& place) {
  launch(place, "mask_scan", shape_for(rows_of(args.dense)), MaskScanParams{args});
}

}  // namespace tegula
