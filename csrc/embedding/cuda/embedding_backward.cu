// The sums of gradients by id: see embedding_backward_params.h for their order.
//
// Each gradient is read once, each row with a place is read and written once. Places of a piece are
// asked for several at a time.
#include "../../cuda/entries.cuh"
#include "block_sum.cuh"
#include "elements.cuh"
#include "embedding_backward_params.h"

namespace tegula {
namespace {

constexpr int kAhead = 4;  // gradients that a thread asks for together

TEGULA_DEVICE int64_t id_at(const IdPlace* places, int64_t i) { return places[i].id; }

TEGULA_DEVICE bool starts_run(const IdPlace* places, int64_t i) {
  return i == 0 || id_at(places, i - 1) != id_at(places, i);
}

// Whether a piece starts at place i.
TEGULA_DEVICE bool starts_piece(const EmbeddingSumParams& p, int64_t i) {
  if (i >= p.count || id_at(p.places, i) >= p.num_rows) return false;
  if (starts_run(p.places, i)) return true;
  // A run that starts inside this window has no second piece there.
  const int64_t window = i / kPlacesOfPiece;
  return id_at(p.places, window * kPlacesOfPiece) == id_at(p.places, i) &&
         (i - p.run_starts[window]) % kPlacesOfPiece == 0;
}

template <class T>
TEGULA_DEVICE T* out_at(const EmbeddingSumParams& p, int64_t run_start, int64_t column) {
  const int64_t row =
      p.row_numbers == nullptr ? id_at(p.places, run_start) : p.row_numbers[run_start];
  return static_cast<T*>(p.out) + row * p.out_stride + column * p.out_step;
}

// The gradient's columns from `column` on.
template <class T, int kN>
TEGULA_DEVICE Elements<T, kN> gradient_at(const EmbeddingSumParams& p, int64_t place,
                                          int64_t column) {
  return load_elements<T, kN>(p.grad.at<T>(entry_offset(p.grad, place) + column * p.grad_step));
}

// Adds the places of the piece that starts at `begin`; returns where it ends.
template <class T, int kN, class C>
TEGULA_DEVICE int64_t add_piece(const EmbeddingSumParams& p, int64_t begin, int64_t column,
                                C (&sum)[kN]) {
  const int64_t id = id_at(p.places, begin), limit = min(begin + kPlacesOfPiece, p.count);
  int64_t i = begin;
  for (bool more = true; more;) {
    int64_t place[kAhead];
    bool there[kAhead];
    Elements<T, kN> gradient[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      there[k] = i + k < limit;
      const IdPlace entry = there[k] ? p.places[i + k] : IdPlace{-1, 0};
      there[k] = entry.id == id;
      place[k] = entry.place;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (there[k]) gradient[k] = gradient_at<T, kN>(p, place[k], column);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (!there[k]) continue;
      const uint32_t kept = p.dropout.active() ? kept_columns<kN>(p.dropout, place[k] / p.length,
                                                                  place[k] % p.length, column)
                                               : ~0u;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        sum[j] += kept >> j & 1 ? static_cast<C>(widen(gradient[k].value[j])) : C{};
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) i += there[k];
    more = there[kAhead - 1];
  }
  return i;
}

template <class T, int kN>
TEGULA_DEVICE void sum_piece(const EmbeddingSumParams& p, int64_t begin, int64_t column) {
  using C = Sum<T>;
  C sum[kN] = {};
  const int64_t end = add_piece<T, kN>(p, begin, column, sum);
  const bool first = starts_run(p.places, begin);
  const bool last = end == p.count || id_at(p.places, end) != id_at(p.places, begin);
  if (first && last) {
    T* const out = out_at<T>(p, begin, column);
    Elements<T, kN> row = load_elements<T, kN>(out);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      narrow(fused(sum[j], static_cast<C>(p.factor), static_cast<C>(widen(row.value[j]))),
             row.value[j]);
    }
    store_elements(out, row);
  } else {
    const int64_t slot = 2 * (begin / kPlacesOfPiece) + (first ? 1 : 0);
    C* const partial = static_cast<C*>(p.partials) + slot * p.dim + column;
#pragma unroll
    for (int j = 0; j < kN; ++j) partial[j] = sum[j];
  }
}

// Without the lowest `count` bits that are set.
TEGULA_DEVICE uint32_t without_lowest(uint32_t bits, int count) {
#pragma unroll 1
  for (; count > 0 && bits != 0; --count) bits &= bits - 1;
  return bits;
}

// kPlacesOfBlock sorted places and one tile of columns to each block; p.lanes threads to a piece.
template <class T, int kN>
TEGULA_DEVICE void sum_pieces(const EmbeddingSumParams& p) {
  static_assert(kPlacesOfBlock == kWarp);
  const int64_t first = blockIdx.x / p.column_tiles * kPlacesOfBlock;
  const int tile = blockIdx.x % p.column_tiles;
  uint32_t starts = __ballot_sync(kAllLanes, starts_piece(p, first + threadIdx.x % kWarp));
  const int64_t column = (static_cast<int64_t>(tile) * p.lanes + threadIdx.x % p.lanes) * kN;
  if (column >= p.dim) return;
  // Groups of lanes take turns at the pieces, each at its own at the same time.
  const int groups = kBackwardThreads / p.lanes, group = threadIdx.x / p.lanes;
  for (starts = without_lowest(starts, group); starts != 0;
       starts = without_lowest(starts, groups)) {
    sum_piece<T, kN>(p, first + __ffs(starts) - 1, column);
  }
}

// Adds the sums of the pieces of one stretch, the first of which starts at place `begin`.
template <class C, int kColumns>
TEGULA_DEVICE void add_stretch(const EmbeddingSumParams& p, int64_t begin, int64_t run_start,
                               int64_t column, C (&sum)[kColumns]) {
  const int64_t id = id_at(p.places, run_start);
  bool there[kPiecesOfStretch];
#pragma unroll
  for (int k = 0; k < kPiecesOfStretch; ++k) {
    const int64_t i = begin + k * kPlacesOfPiece;
    there[k] = i < p.count && id_at(p.places, i) == id;
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    if (column + kWarp * j >= p.dim) return;
    C partial[kPiecesOfStretch];
#pragma unroll
    for (int k = 0; k < kPiecesOfStretch; ++k) {
      const int64_t i = begin + k * kPlacesOfPiece;
      const int64_t slot = 2 * (i / kPlacesOfPiece) + (i == run_start ? 1 : 0);
      const C* const row = static_cast<const C*>(p.partials) + slot * p.dim;
      if (there[k]) partial[k] = row[column + kWarp * j];
    }
#pragma unroll
    for (int k = 0; k < kPiecesOfStretch; ++k) {
      if (there[k]) sum[j] += partial[k];
    }
  }
}

// Where the run with several pieces starts whose first one lies in the window; -1: there is none.
TEGULA_DEVICE int64_t run_to_join(const EmbeddingSumParams& p, int64_t window) {
  const int64_t next = (window + 1) * kPlacesOfPiece;  // such a run reaches the next window
  if (next >= p.count || id_at(p.places, next) >= p.num_rows) return -1;
  const int64_t start = p.run_starts[window + 1], second = start + kPlacesOfPiece;
  if (start / kPlacesOfPiece != window || second >= p.count) return -1;
  return id_at(p.places, second) == id_at(p.places, start) ? start : -1;
}

// Adds the pieces of runs that have several: kWindowsOfBlock windows and kColumnsOfJoin columns
// to each block, a stretch to each warp.
template <class T>
TEGULA_DEVICE void join_pieces(const EmbeddingSumParams& p) {
  using C = Sum<T>;
  constexpr int kColumns = kColumnsOfJoin / kWarp;  // of a lane
  constexpr int64_t kStretch = kPiecesOfStretch * kPlacesOfPiece;
  __shared__ int64_t runs[kWindowsOfBlock];
  __shared__ C stretches[kBackwardWarps][kColumnsOfJoin];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t windows = blockIdx.x / p.column_tiles * kWindowsOfBlock;
  const int64_t columns = blockIdx.x % p.column_tiles * static_cast<int64_t>(kColumnsOfJoin);
  if (lane == 0) runs[warp] = run_to_join(p, windows + warp);
  __syncthreads();
  for (int w = 0; w < kWindowsOfBlock; ++w) {
    const int64_t start = runs[w];
    if (start < 0) continue;
    const int64_t id = id_at(p.places, start), column = columns + threadIdx.x;
    C total = C{};
    for (int64_t begin = start; begin < p.count && id_at(p.places, begin) == id;
         begin += kBackwardWarps * kStretch) {
      C sum[kColumns] = {};
      add_stretch(p, begin + warp * kStretch, start, columns + lane, sum);
      for (int j = 0; j < kColumns; ++j) stretches[warp][lane + kWarp * j] = sum[j];
      __syncthreads();
      if (threadIdx.x < kColumnsOfJoin) {
        for (int k = 0; k < kBackwardWarps; ++k) total += stretches[k][threadIdx.x];
      }
      __syncthreads();
    }
    if (threadIdx.x < kColumnsOfJoin && column < p.dim) {
      T* const out = out_at<T>(p, start, column);
      narrow(fused(total, static_cast<C>(p.factor), static_cast<C>(widen(*out))), *out);
    }
  }
}

}  // namespace

// The start of the run at each window's first place, by bisection.
extern "C" __global__ void __launch_bounds__(kBackwardThreads)
    embedding_run_starts(const __grid_constant__ RunStartParams params) {
  const int64_t window = global_thread();
  if (window >= params.windows) return;
  int64_t low = 0, high = window * kPlacesOfPiece;  // the start lies in [low, high]
  const int64_t id = id_at(params.places, high);
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (id_at(params.places, middle) < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  params.run_starts[window] = low;
}

#define TEGULA_SUM_KERNEL(name, T, kN)                                            \
  extern "C" __global__ void __launch_bounds__(kBackwardThreads, kBackwardBlocks) \
      embedding_sum_##name(const __grid_constant__ EmbeddingSumParams params) {   \
    sum_pieces<T, kN>(params);                                                    \
  }

TEGULA_SUM_KERNEL(float64_vectors, double, 2)
TEGULA_SUM_KERNEL(float32_vectors, float, 4)
TEGULA_SUM_KERNEL(float16_vectors, Half, 8)
TEGULA_SUM_KERNEL(bfloat16_vectors, BFloat16, 8)
TEGULA_SUM_KERNEL(float64_elements, double, 1)
TEGULA_SUM_KERNEL(float32_elements, float, 1)
TEGULA_SUM_KERNEL(float16_elements, Half, 1)
TEGULA_SUM_KERNEL(bfloat16_elements, BFloat16, 1)

#define TEGULA_JOIN_KERNEL(name, T)                                               \
  extern "C" __global__ void __launch_bounds__(kBackwardThreads, kBackwardBlocks) \
      embedding_join_##name(const __grid_constant__ EmbeddingSumParams params) {  \
    join_pieces<T>(params);                                                       \
  }

TEGULA_JOIN_KERNEL(float64, double)
TEGULA_JOIN_KERNEL(float32, float)
TEGULA_JOIN_KERNEL(float16, Half)
TEGULA_JOIN_KERNEL(bfloat16, BFloat16)

}  // namespace tegula
