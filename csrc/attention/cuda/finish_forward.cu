// What attention comes to where each chunk of keys was computed by a block of its own. A warp has a
// row: it reads the results of all its chunks once.
#include "partial_rows.cuh"

namespace tegula {
namespace {

template <class T>
TEGULA_DEVICE void finish_rows(const AttentionForwardParams& p) {
  const AttentionArgs& a = p.a;
  constexpr int kLaneColumns = 4;
  const int64_t unit_rows = a.heads / a.key_heads * a.q_len;
  const int64_t index = global_thread() / 32;
  if (index >= a.batch * a.key_heads * unit_rows) return;
  const Unit unit = unit_of(a, index / unit_rows);
  const int64_t row = index % unit_rows, head = unit.head(row);
  const int64_t place = place_of_chunk(p, unit, row, 0);
  const int lane = static_cast<int>(threadIdx.x % 32);

  T* const out = slab_of<T>(a.out, unit.batch).row(head, unit.query(row));
  for (int first = 0; first == 0 || first < p.width; first += 32 * kLaneColumns) {
    const int column = first + lane * kLaneColumns;
    const auto sums_of = [&](int64_t chunk) {
      if (column >= p.width) return float4{};
      return *reinterpret_cast<const float4*>(p.sums + (place + chunk) * p.width + column);
    };
    RowSoftmax<float> total = load_softmax(p, place);
    float4 sums = sums_of(0);
#pragma unroll 4
    for (int64_t chunk = 1; chunk < p.chunks; ++chunk) {
      const FoldFactors<float> fold = fold_rows(total, load_softmax(p, place + chunk));
      const float4 part = sums_of(chunk);
      sums = {fold(sums.x, part.x), fold(sums.y, part.y), fold(sums.z, part.z),
              fold(sums.w, part.w)};
    }
    const RowResult<float> result =
        result_of_row(a, a.sinks == nullptr ? nullptr : a.sinks + head, total);
    if (first == 0 && lane == 0 && a.lse) {
      *slab_of<float>(a.lse, unit.batch).row(head, unit.query(row)) = result.lse;
    }
    const float columns[kLaneColumns] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      if (column + i < a.value_dim) {
        narrow(output_of(a, columns[i], result.factor), out[(column + i) * a.out.step(0)]);
      }
    }
  }
}

}  // namespace

#define TEGULA_FINISH(type, name)                                                 \
  extern "C" __global__ void __launch_bounds__(kFinishThreads)                    \
      attention_finish_##name(const __grid_constant__ AttentionForwardParams p) { \
    finish_rows<type>(p);                                                         \
  }

TEGULA_FINISH(Half, float16)
TEGULA_FINISH(BFloat16, bfloat16)

}  // namespace tegula
