// dbias, added up by the units themselves: where those that share an entry of it come one after
// the other, the slopes that dq and dk are made of are all that it takes.
#pragma once

#include "gradient_weights.inl"

namespace tegula {
namespace {

// Adds dS of row vector j of the block, keys `range` of the tile, to dbias, which has the
// type of the sums.
template <class T, class F>
TEGULA_NOINLINE void add_bias_vector(GradContext<T, F>& c, const Block<typename F::Compute>& block,
                                     int j, KeyRange range, const typename F::Compute* slopes) {
  using C = typename F::Compute;
  constexpr int kN = kLanes<C>;
  const View& dbias = c.g.dbias;
  const int64_t step = dbias.step(0);
  C* base = dbias.at<C>(c.batch_offset(dbias) + c.tile.begin * step);
  const int rows = static_cast<int>(smaller(kN, block.rows - j * kN));
  const int end = static_cast<int>(smaller(range.end, c.tile.count));
  for (int key = range.begin; key < end; key += kN) {
    const int keys = static_cast<int>(smaller(kN, end - key));
    Vec<C> of_row[kN];
    for (int i = 0; i < kN; ++i) {
      of_row[i] = i < keys ? load(slopes + (key + i) * kGradientRows<C>) : Vec<C>{};
    }
    transpose<C>(of_row);
    for (int r = 0; r < rows; ++r) {
      C* to = base + c.row_offset(dbias, block.slot + j * kN + r) + key * step;
      if (keys == kN && step == 1) {
        store_unaligned(to, load_unaligned(to) + of_row[r]);
      } else {
        for (int i = 0; i < keys; ++i) to[i * step] += of_row[r][i];
      }
    }
  }
}

template <class T, class F>
TEGULA_INLINE void add_bias(GradContext<T, F>& c, const Group<typename F::Compute>& group,
                            const Block<typename F::Compute>& block, int column) {
  constexpr int kN = kLanes<typename F::Compute>;
  for (int j = 0; j < block.vectors(); ++j) {
    add_bias_vector(c, block, j, group.ranges[column / kN + j], c.s.slopes + column + j * kN);
  }
}

}  // namespace
}  // namespace tegula
