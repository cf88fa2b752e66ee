// The runs of keys in each row of a dense mask, and its summary.
#include "keys.cuh"
#include "mask_params.h"

namespace tegula {
namespace {

constexpr int kAhead = 4;                       // loads of a lane under way
constexpr int64_t kStep = kKeysOfLane * kWarp;  // keys that a warp looks at together

// The runs of a row, the same in all lanes. More than two are not told apart.
struct Runs {
  int64_t begin = 0, end = 0, second = 0;  // of the first run; where the second one begins
  int count = 0;
  bool inside = false;  // the last one goes on

  // Takes the step of keys that begins at `first`: this lane's are `shown`, and `exist` those that
  // the row has.
  TEGULA_DEVICE void add(int64_t first, uint32_t shown, uint32_t exist) {
    const int lane = threadIdx.x % kWarp;
    int from = 0;  // in the step
    while (count < 3) {
      // The next key that ends the run, or begins one.
      const uint32_t ahead = keys_within<kKeysOfLane>(lane * kKeysOfLane, from, kStep);
      const uint32_t found = (inside ? exist & ~shown : shown) & ahead;
      const uint32_t lanes = __ballot_sync(kAllLanes, found != 0);
      if (lanes == 0) return;
      from = __shfl_sync(kAllLanes, lane * kKeysOfLane + __ffs(found) - 1, __ffs(lanes) - 1);
      if (inside) {
        if (count == 1) end = first + from;
      } else {
        if (count == 0) begin = first + from;
        if (count == 1) second = first + from;
        ++count;
      }
      inside = !inside;
    }
  }
};

TEGULA_DEVICE Runs scan_row(const uint8_t* keys, int64_t stride, int64_t n, int64_t& end) {
  const int lane = threadIdx.x % kWarp;
  const int64_t skew = reinterpret_cast<uintptr_t>(keys) % kKeysOfLane;
  Runs runs;
  int64_t last = 0;  // one past this lane's last visible key
  for (int64_t first = -skew; first < n; first += kAhead * kStep) {
    uint32_t shown[kAhead], exist[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t column = first + k * kStep + lane * kKeysOfLane;
      exist[k] = keys_within<kKeysOfLane>(column, 0, n);
      shown[k] = load_keys<kKeysOfLane>(keys + column * stride, stride, exist[k]);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t step = first + k * kStep;
      if (shown[k] != 0) last = step + lane * kKeysOfLane + kWarp - __clz(shown[k]);
      runs.add(step, shown[k], exist[k]);
    }
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    last = max(last, __shfl_xor_sync(kAllLanes, last, distance));
  }
  end = last;
  return runs;
}

TEGULA_DEVICE void note(const View& view, const QueryRow& at, int64_t value) {
  if (view) *view.at<int32_t>(at.offset(view)) = static_cast<int32_t>(value);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kMaskThreads, kScanBlocks)
    mask_scan(const __grid_constant__ MaskScanParams params) {
  __shared__ int most;  // runs of a row
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  const MaskScanArgs& a = params.args;
  const int64_t row = global_thread() / kWarp, n = a.dense.shape[3];
  if (row < a.dense.shape[0] * a.dense.shape[1] * a.dense.shape[2]) {
    const QueryRow at = query_row(a.dense, row);
    int64_t end;
    const Runs runs = scan_row(a.dense.at<uint8_t>(at.offset(a.dense)), a.dense.stride[3], n, end);
    if (threadIdx.x % kWarp == 0) {
      const bool gap = runs.count > 1;
      note(a.lo, at, runs.count > 0 ? runs.begin : n);
      note(a.hi, at, end);
      note(a.gap_lo, at, gap ? runs.end : end);
      note(a.gap_hi, at, gap ? runs.second : end);
      atomicMax(&most, runs.count);
    }
  }
  __syncthreads();
  const bool tells = params.runs_found != nullptr && most > 1;
  if (threadIdx.x == 0 && tells) atomicMax(params.runs_found, most - 1);  // a MaskRuns
}

// A row of kCellsOfWarp cells to each warp; a lane reads kKeysOfLane keys of each query.
extern "C" __global__ void __launch_bounds__(kMaskThreads)
    mask_cells(const __grid_constant__ MaskCellsParams params) {
  constexpr int kLanes = kWarp / kCellsOfWarp;  // of a cell
  static_assert(kLanes * kKeysOfLane == kCellKeys);
  const View &dense = params.args.dense, &cells = params.args.cells;
  const int64_t warp = global_thread() / kWarp, row = warp / params.pieces;
  if (row >= cells.shape[0] * cells.shape[1] * cells.shape[2]) return;
  const int lane = threadIdx.x % kWarp;
  const QueryRow cell_row = query_row(cells, row);
  const int64_t cell = (warp - row * params.pieces) * kCellsOfWarp + lane / kLanes;
  const int64_t column = cell * kCellKeys + lane % kLanes * kKeysOfLane;
  const uint32_t exist = keys_within<kKeysOfLane>(column, 0, dense.shape[3]);
  const QueryRow first{cell_row.b, cell_row.h, cell_row.i * kCellQueries};
  const uint8_t* keys = dense.at<uint8_t>(first.offset(dense) + column * dense.stride[3]);
  uint32_t seen = 0, hidden = 0;  // by some query
#pragma unroll 8
  for (int i = 0; i < kCellQueries; ++i) {
    if (first.i + i >= dense.shape[2]) break;
    const uint32_t shown =
        load_keys<kKeysOfLane>(keys + i * dense.stride[2], dense.stride[3], exist);
    seen |= shown;
    hidden |= exist & ~shown;
  }
  uint32_t found = (seen != 0 ? 1 : 0) | (hidden != 0 ? 2 : 0);
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    found |= __shfl_xor_sync(kAllLanes, found, distance);
  }
  if (lane % kLanes == 0 && cell < cells.shape[3]) {
    cells.at<uint8_t>(row * cells.shape[3])[cell] = (found & 1) == 0   ? kHidden
                                                    : (found & 2) != 0 ? kMixed
                                                                       : kShown;
  }
}

}  // namespace tegula
