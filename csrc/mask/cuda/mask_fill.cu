// A row of the output, or a piece of it, to each warp. A lane makes 16 bytes at a time, which begin
// on an aligned address: elements of them that belong to another row are left alone.
#include "../row_keys.h"
#include "keys.cuh"
#include "mask_params.h"

namespace tegula {
namespace {

TEGULA_DEVICE int64_t bound(const View& view, const QueryRow& row) {
  return view ? *view.at<int32_t>(row.offset(view)) : 0;
}

// kN elements from `column` on: `shown` says which are visible, `inside` which belong to the row.
template <class T, int kN>
TEGULA_DEVICE void store_keys(const MaskFillParams& p, T* row, int64_t column, uint32_t shown,
                              uint32_t inside) {
  const T hidden = static_cast<T>(p.hidden), visible = static_cast<T>(p.visible);
  if constexpr (kN > 1) {
    if (inside == (1u << kN) - 1) {
      uint32_t words[4] = {};
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const T element = shown >> j & 1 ? visible : hidden;
        constexpr int kSize = sizeof(T);
        words[j * kSize / 4] |= static_cast<uint32_t>(element) << (8 * (j * kSize % 4));
        if constexpr (kSize == 8) words[2 * j + 1] = static_cast<uint32_t>(element >> 32);
      }
      // By name, or the compiler makes several stores of it.
      __stwb(reinterpret_cast<uint4*>(row + column),
             make_uint4(words[0], words[1], words[2], words[3]));
      return;
    }
  }
  const int64_t step = p.args.out.stride[3];
#pragma unroll 1
  for (; inside != 0; inside &= inside - 1) {
    const int j = __ffs(inside) - 1;
    row[(column + j) * step] = shown >> j & 1 ? visible : hidden;
  }
}

template <class T, int kN>
TEGULA_DEVICE void fill_rows(const MaskFillParams& p) {
  const MaskFillArgs& a = p.args;
  const int64_t warp = global_thread() / kWarp, row = warp / p.pieces;
  if (row >= a.out.shape[0] * a.out.shape[1] * a.out.shape[2]) return;
  const QueryRow at = query_row(a.out, row);
  const int64_t n = a.out.shape[3];
  const RowKeys keys =
      row_keys(bound(a.lo, at), bound(a.hi, at), bound(a.gap_lo, at), bound(a.gap_hi, at), n);
  T* const out = a.out.at<T>(at.offset(a.out));
  const int64_t skew = reinterpret_cast<uintptr_t>(out) / sizeof(T) % kN;
  const int64_t first = (warp - row * p.pieces) * kFillStores * kWarp + threadIdx.x % kWarp;
#pragma unroll 1
  for (int k = 0; k < kFillStores; ++k) {
    const int64_t column = (first + k * kWarp) * kN - skew;
    if (column >= n) return;
    const uint32_t inside = keys_within<kN>(column, 0, n);
    uint32_t shown = keys_within<kN>(column, keys.lo, keys.hi) &
                     ~keys_within<kN>(column, keys.gap_lo, keys.gap_hi);
    if (a.dense && shown != 0) {
      const int64_t stride = a.dense.stride[3];
      shown &=
          load_keys<kN>(a.dense.at<uint8_t>(at.offset(a.dense)) + column * stride, stride, inside);
    }
    store_keys<T, kN>(p, out, column, shown, inside);
  }
}

}  // namespace

#define TEGULA_FILL_KERNEL(name, T, kN)                                 \
  extern "C" __global__ void __launch_bounds__(kMaskThreads)            \
      mask_fill_##name(const __grid_constant__ MaskFillParams params) { \
    fill_rows<T, kN>(params);                                           \
  }

TEGULA_FILL_KERNEL(8_vectors, uint8_t, 16)
TEGULA_FILL_KERNEL(16_vectors, uint16_t, 8)
TEGULA_FILL_KERNEL(32_vectors, uint32_t, 4)
TEGULA_FILL_KERNEL(64_vectors, uint64_t, 2)
TEGULA_FILL_KERNEL(8_elements, uint8_t, 1)
TEGULA_FILL_KERNEL(16_elements, uint16_t, 1)
TEGULA_FILL_KERNEL(32_elements, uint32_t, 1)
TEGULA_FILL_KERNEL(64_elements, uint64_t, 1)

}  // namespace tegula
