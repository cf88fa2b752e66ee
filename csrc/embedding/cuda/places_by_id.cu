#include "../../cuda/entries.cuh"
#include "block_sum.cuh"
#include "id_fault.cuh"
#include "places_by_id_cuda.h"

namespace tegula {
namespace {

constexpr int kNoDigit = kDigits;  // of threads without an entry

// The id under which the entry is sorted.
TEGULA_DEVICE int64_t row_of(const SortParams& p, int64_t id) {
  const bool has_row =
      is_inside(id, p.num_rows) && id != p.padding_idx && !(p.has_ignored && id == p.ignored);
  return has_row ? id : p.num_rows;
}

TEGULA_DEVICE IdPlace entry_at(const SortParams& p, int64_t index) {
  if (p.from == nullptr) return {row_of(p, integer_entry(p.ids, index)), index};
  const longlong2 both = reinterpret_cast<const longlong2*>(p.from)[index];
  return {both.x, both.y};
}

TEGULA_DEVICE int digit_of(const SortParams& p, const IdPlace& entry) {
  return static_cast<int>(entry.id >> p.shift) & (kDigits - 1);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kSortThreads)
    sort_histogram(const __grid_constant__ SortParams params) {
  __shared__ uint32_t counts[kDigits];
  static_assert(kSortThreads == kDigits);
  counts[threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * params.slice, end = min(begin + params.slice, params.count);
  for (int64_t i = begin + threadIdx.x; i < end; i += kSortThreads) {
    const IdPlace entry = entry_at(params, i);
    atomicAdd(&counts[digit_of(params, entry)], 1u);
    if (params.from == nullptr && entry.id == params.num_rows) {
      const int64_t id = integer_entry(params.ids, i);
      const bool ignored = params.has_ignored && id == params.ignored;
      if (!is_inside(id, params.num_rows) && !ignored) {
        report(params.fault, kIds, id, i, params.num_rows);
      }
    }
  }
  __syncthreads();
  params.counts[threadIdx.x * params.slices + blockIdx.x] = counts[threadIdx.x];
}

// A warp to each row of counts, which asks for several of them together.
extern "C" __global__ void __launch_bounds__(kSortThreads)
    sort_scan(const __grid_constant__ SortParams params) {
  constexpr int kAhead = 4;
  const int64_t row = global_thread() / kWarp;
  if (row >= params.rows) return;
  int64_t* const counts = params.counts + row * params.slices;
  int64_t before = 0;
  for (int64_t first = threadIdx.x % kWarp; first - threadIdx.x % kWarp < params.slices;
       first += kAhead * kWarp) {
    int64_t count[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      count[k] = first + k * kWarp < params.slices ? counts[first + k * kWarp] : 0;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t sum = sum_of_lanes(count[k]);
      if (first + k * kWarp < params.slices) counts[first + k * kWarp] = before + sum - count[k];
      before += __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
  }
  if (threadIdx.x % kWarp == 0) params.totals[row] = before;
}

extern "C" __global__ void __launch_bounds__(kSortThreads)
    sort_scatter(const __grid_constant__ SortParams params) {
  constexpr int kWarps = kSortThreads / kWarp;
  __shared__ uint32_t counts[kWarps][kDigits];  // of a warp's entries
  __shared__ int64_t targets[kWarps][kDigits];  // where its first one goes
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;

  // Where the next entry with digit threadIdx.x goes.
  int64_t total;
  int64_t next = sum_before<kSortThreads>(params.totals[threadIdx.x], total) +
                 params.counts[threadIdx.x * params.slices + blockIdx.x];
  for (int i = 0; i < kWarps; ++i) counts[i][threadIdx.x] = 0;
  __syncthreads();

  const int64_t begin = blockIdx.x * params.slice, end = min(begin + params.slice, params.count);
  for (int64_t first = begin; first < end; first += kSortThreads) {
    const int64_t i = first + threadIdx.x;
    IdPlace entry{};
    int digit = kNoDigit;
    if (i < end) {
      entry = entry_at(params, i);
      digit = digit_of(params, entry);
    }
    const uint32_t peers = __match_any_sync(kAllLanes, digit);
    const int rank = __popc(peers & ((1u << lane) - 1));
    if (rank == 0 && digit != kNoDigit) counts[warp][digit] = __popc(peers);
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      targets[w][threadIdx.x] = next;
      next += counts[w][threadIdx.x];
      counts[w][threadIdx.x] = 0;
    }
    __syncthreads();
    if (digit != kNoDigit) {
      reinterpret_cast<longlong2*>(params.to)[targets[warp][digit] + rank] =
          make_longlong2(entry.id, entry.place);
    }
  }
}

}  // namespace tegula
