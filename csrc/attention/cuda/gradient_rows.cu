// delta = rowsum(grad_out out) - grad_lse, and what else backward kernels ask of a row: each number
// of out and grad_out is read once, so the cost is their bytes. Then the gradients of sinks, which
// need nothing more.
//
// A block has kSightRows rows of a unit, kRowThreads threads each.
#include "far_rows.cuh"
#include "gradient_rows.h"

namespace tegula {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = kThreads / kSightRows;
constexpr int kPart = 8;  // elements that a thread reads at a time, 16 bytes of 16-bit types

// Elements [begin, begin + kPart) of a row, zeros behind its end.
template <class T, class C>
TEGULA_DEVICE void load_part(const T* row, int64_t step, int64_t begin, int64_t size, bool chunks,
                             C (&to)[kPart]) {
  if constexpr (sizeof(T) == 2) {
    if (chunks) {
      alignas(16) T part[kPart];
      *reinterpret_cast<uint4*>(part) = *reinterpret_cast<const uint4*>(row + begin);
#pragma unroll
      for (int i = 0; i < kPart; ++i) to[i] = widen(part[i]);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    to[i] = begin + i < size ? widen(row[(begin + i) * step]) : C(0);
  }
}

// The sum of all kRowThreads threads of a row, which each of them gets.
template <class C>
TEGULA_DEVICE C sum_of_row(C sum) {
#pragma unroll
  for (int step = kRowThreads / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  }
  return sum;
}

// An output of zeros, as of a row without keys, passes no grad_out on, whatever that holds.
template <class T, class C>
TEGULA_DEVICE C product_of_row(const GradientRowsParams& p, const Unit& unit, int64_t row,
                               bool exists) {
  C sum = 0;
  bool some = false;
  if (exists) {
    const int64_t head = unit.head(row), query = unit.query(row);
    const auto out = slab_of<const T>(p.a.out, unit.batch);
    const auto grad = slab_of<const T>(p.a.grad_out, unit.batch);
    const int64_t size = p.a.value_dim;
    for (int64_t begin = threadIdx.x % kRowThreads * kPart; begin < size;
         begin += kRowThreads * kPart) {
      C x[kPart], y[kPart];
      load_part(out.row(head, query), out.step, begin, size, p.chunks, x);
      load_part(grad.row(head, query), grad.step, begin, size, p.chunks, y);
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        sum += x[i] * y[i];
        some |= x[i] != C(0);
      }
    }
  }
  sum = sum_of_row(sum);
  return sum_of_row(some ? 1 : 0) != 0 ? sum : C(0);
}

template <class T>
TEGULA_DEVICE void gradient_rows(const GradientRowsParams& p) {
  using C = Sum<T>;
  const int64_t blocks = p.rows.blocks();
  const Unit unit = unit_of(p.a, blockIdx.x / blocks);
  const int64_t first_row = blockIdx.x % blocks * kSightRows;
  const int64_t first = blockIdx.x / blocks * p.rows.unit_rows + first_row;
  const auto number_of = [&](const View& view, int64_t row) {
    return *slab_of<const C>(view, unit.batch).row(unit.head(row), unit.query(row));
  };

  const int i = threadIdx.x / kRowThreads;
  const int64_t row = first_row + i;
  const bool exists = row < unit.rows;
  C delta = product_of_row<T, C>(p, unit, row, exists);
  if (exists && p.a.grad_lse) delta -= number_of(p.a.grad_lse, row);
  if (threadIdx.x % kRowThreads == 0) {
    const bool empty = !exists || number_of(p.a.lse, row) == negative_infinity<C>();
    static_cast<C*>(p.rows.deltas)[first + i] = empty ? C(0) : delta;
  }

  __shared__ C log_sums[kSightRows];
  __shared__ SeenKeys all_seen[kSightRows];
  if (threadIdx.x < kSightRows) {
    const int lane = threadIdx.x;
    SeenKeys seen;
    C lse = negative_infinity<C>();
    if (first_row + lane < unit.rows) {
      lse = number_of(p.a.lse, first_row + lane);
      if (lse != negative_infinity<C>()) seen = seen_by(p.a, unit, first_row + lane);
    }
    log_sums[lane] = lse, all_seen[lane] = seen;
    p.rows.seen[first + lane] = seen;
    const SeenByAll sight = seen_by_warp(seen, true);
    if (lane == 0) p.rows.sights[first / kSightRows] = sight;
  }
  __syncthreads();

  for (int r = threadIdx.x / 32; r < kSightRows; r += kThreads / 32) {
    const C lse = log_sums[r];
    C shift = lse == negative_infinity<C>() ? -lse : in_log2(lse), rest = 0;
    if (p.rows.rests != nullptr && !is_far(shift)) {
      // What rounding takes from the shift would go into all weights of the row.
      if (!isinf(shift)) {
        rest = static_cast<C>(fma(static_cast<double>(lse), kLog2E, -static_cast<double>(shift)));
      }
    } else if (p.rows.rests != nullptr) {
      if (is_rich(p.a)) {
        split_shift<T, true>(p.a, unit, first_row + r, all_seen[r], shift, rest);
      } else {
        split_shift<T, false>(p.a, unit, first_row + r, all_seen[r], shift, rest);
      }
    }
    if (threadIdx.x % 32 != 0) continue;
    static_cast<C*>(p.rows.shifts)[first + r] = shift;
    if (p.rows.rests != nullptr) static_cast<C*>(p.rows.rests)[first + r] = rest;
  }
}

// A block has a head: dsink = -sum of exp(sink - lse) delta, in an order that depends on nothing
// but the number of rows.
template <class C>
TEGULA_DEVICE void sink_gradients(const GradientRowsParams& p) {
  const int64_t group = p.a.heads / p.a.key_heads;
  const int64_t head = blockIdx.x, key_head = head / group;
  const double sink = p.a.sinks[head] * kLog2E;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < p.a.batch * p.a.q_len; i += kThreads) {
    const int64_t unit = i / p.a.q_len * p.a.key_heads + key_head;
    const int64_t at = unit * p.rows.unit_rows + i % p.a.q_len * group + head % group;
    const C shift = static_cast<const C*>(p.rows.shifts)[at];
    const C rest = p.rows.rests == nullptr ? C(0) : static_cast<const C*>(p.rows.rests)[at];
    sum -= exp2(static_cast<C>(sink - shift - rest)) * static_cast<const C*>(p.rows.deltas)[at];
  }
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = sum;
  for (int count = kThreads / 2; count > 0; count /= 2) {
    __syncthreads();
    if (threadIdx.x < count) sums[threadIdx.x] += sums[threadIdx.x + count];
  }
  if (threadIdx.x == 0) p.a.dsinks[head] = sums[0];
}

}  // namespace

#define TEGULA_GRADIENT_ROWS(type, name)                                              \
  extern "C" __global__ void __launch_bounds__(kThreads)                              \
      attention_gradient_rows_##name(const __grid_constant__ GradientRowsParams p) {  \
    gradient_rows<type>(p);                                                           \
  }                                                                                   \
  extern "C" __global__ void __launch_bounds__(kThreads)                              \
      attention_sink_gradients_##name(const __grid_constant__ GradientRowsParams p) { \
    sink_gradients<Sum<type>>(p);                                                     \
  }

TEGULA_GRADIENT_ROWS(float, float32)
TEGULA_GRADIENT_ROWS(double, float64)
TEGULA_GRADIENT_ROWS(Half, float16)
TEGULA_GRADIENT_ROWS(BFloat16, bfloat16)

}  // namespace tegula
