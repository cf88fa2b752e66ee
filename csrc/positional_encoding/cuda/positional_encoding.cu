#include "../../cuda/entries.cuh"
#include "positional_encoding_params.h"
#include "sinusoid.cuh"

namespace tegula {
namespace {

template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T sine, cosine;
};

// The same pair of columns of kEncodingRows rows.
template <class T>
TEGULA_DEVICE void encode(const PositionalEncodingParams& p) {
  const int64_t half = (p.dim + 1) / 2, item = global_thread();
  const int64_t group = item / half, pair = item - group * half;
  const int64_t first = group * kEncodingRows, end = min(first + kEncodingRows, p.rows);
  if (first >= p.rows) return;
  const bool interleaved = p.layout == PositionLayout::kInterleaved;
  const int64_t sine_column = interleaved ? 2 * pair : pair;
  const int64_t cosine_column = interleaved ? 2 * pair + 1 : half + pair;
  const double frequency = p.frequencies[pair];
#pragma unroll 1
  for (int64_t row = first; row < end; ++row) {
    double sine, cosine;
    sinusoid_pair(frequency, double_entry(p.positions, row), sine, cosine);
    Pair<T> result;
    narrow(sine, result.sine);
    narrow(cosine, result.cosine);
    T* const out = p.out.at<T>(entry_offset(p.out, row));
    if (p.pairs) {
      *reinterpret_cast<Pair<T>*>(out + sine_column) = result;
    } else {
      out[sine_column * p.out_step] = result.sine;
      if (pair < p.dim / 2) out[cosine_column * p.out_step] = result.cosine;
    }
  }
}

}  // namespace

#define TEGULA_ENCODING_KERNEL(name, T)                                                     \
  extern "C" __global__ void __launch_bounds__(kEncodingThreads)                            \
      positional_encoding_##name(const __grid_constant__ PositionalEncodingParams params) { \
    encode<T>(params);                                                                      \
  }

TEGULA_ENCODING_KERNEL(float64, double)
TEGULA_ENCODING_KERNEL(float32, float)
TEGULA_ENCODING_KERNEL(float16, Half)
TEGULA_ENCODING_KERNEL(bfloat16, BFloat16)

}  // namespace tegula
