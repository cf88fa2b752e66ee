// The rows of a sparse gradient: runs of equal ids, numbered in the order of their ids. Slices of
// places are the sort's: their runs are counted, sort_scan adds up, then each finds its number.
#include "block_sum.cuh"
#include "embedding_backward_params.h"

namespace tegula {
namespace {

TEGULA_DEVICE bool starts_row(const RunNumberParams& p, int64_t i) {
  if (i >= p.count || p.places[i].id >= p.num_rows) return false;
  return i == 0 || p.places[i - 1].id != p.places[i].id;
}

// Calls body(i, starts, before) for the slice's places, a block's worth at a time: whether a run
// starts at place i, and how many start before it in the slice. Returns how many there are.
template <class Body>
TEGULA_DEVICE int64_t for_each_place(const RunNumberParams& p, Body&& body) {
  const int64_t begin = blockIdx.x * p.slice;
  int64_t before = 0;
  for (int64_t first = begin; first < begin + p.slice; first += kBackwardThreads) {
    const int64_t i = first + threadIdx.x;
    const bool starts = starts_row(p, i);
    int64_t total;
    const int64_t in_block = sum_before<kBackwardThreads>(starts, total);
    body(i, starts, before + in_block);
    before += total;
  }
  return before;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBackwardThreads)
    embedding_count_runs(const __grid_constant__ RunNumberParams params) {
  const int64_t count = for_each_place(params, [](int64_t, bool, int64_t) {});
  if (threadIdx.x == 0) params.counts[blockIdx.x] = count;
}

extern "C" __global__ void __launch_bounds__(kBackwardThreads)
    embedding_number_runs(const __grid_constant__ RunNumberParams params) {
  const int64_t before = params.counts[blockIdx.x];
  for_each_place(params, [&](int64_t i, bool starts, int64_t number) {
    if (!starts) return;
    params.row_numbers[i] = before + number;
    params.ids[(before + number) * params.ids_stride] = params.places[i].id;
  });
}

}  // namespace tegula
