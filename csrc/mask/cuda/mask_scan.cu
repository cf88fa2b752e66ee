// Where the visible keys of each row of a dense mask begin and end.
#include "keys.cuh"
#include "mask_params.h"

namespace tegula {
namespace {

constexpr int kAhead = 4;                       // loads of a lane under way
constexpr int64_t kStep = kKeysOfLane * kWarp;  // keys that a warp looks at together

}  // namespace

extern "C" __global__ void __launch_bounds__(kMaskThreads, kScanBlocks)
    mask_scan(const __grid_constant__ MaskScanParams params) {
  const MaskScanArgs& a = params.args;
  const int64_t row = global_thread() / kWarp, n = a.dense.shape[3];
  if (row >= a.dense.shape[0] * a.dense.shape[1] * a.dense.shape[2]) return;
  const QueryRow at = query_row(a.dense, row);
  const uint8_t* keys = a.dense.at<uint8_t>(at.offset(a.dense));
  const int64_t stride = a.dense.stride[3];
  const int64_t skew = reinterpret_cast<uintptr_t>(keys) % kKeysOfLane;
  const int lane = threadIdx.x % kWarp;
  int64_t begin = n, end = 0;  // of this lane's visible keys
  for (int64_t first = -skew; first < n; first += kAhead * kStep) {
    uint32_t shown[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t column = first + k * kStep + lane * kKeysOfLane;
      shown[k] = load_keys<kKeysOfLane>(keys + column * stride, stride,
                                        keys_within<kKeysOfLane>(column, 0, n));
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (shown[k] == 0) continue;
      const int64_t column = first + k * kStep + lane * kKeysOfLane;
      begin = min(begin, column + __ffs(shown[k]) - 1);
      end = column + kWarp - __clz(shown[k]);
    }
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    begin = min(begin, __shfl_xor_sync(kAllLanes, begin, distance));
    end = max(end, __shfl_xor_sync(kAllLanes, end, distance));
  }
  if (lane != 0) return;
  *a.lo.at<int32_t>(at.offset(a.lo)) = static_cast<int32_t>(begin);
  *a.hi.at<int32_t>(at.offset(a.hi)) = static_cast<int32_t>(end);
}

}  // namespace tegula
