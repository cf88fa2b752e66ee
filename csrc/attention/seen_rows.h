// What rows see under a mask's intervals, read for planning: how much work a row is, and where
// rows part that share no key.
#pragma once

#include <algorithm>

#include "../mask/row_keys.h"
#include "attention.h"

namespace tegula {

struct KeySpan {
  int64_t begin = 0, end = 0;

  bool empty() const { return end <= begin; }
};

// The rows of one batch entry and head.
class SeenRows {
 public:
  SeenRows(const AttentionArgs& a, int64_t batch, int64_t head) : keys_(a.k_len) {
    if (!a.lo) return;
    lo_ = Bounds(a.lo, batch, head), hi_ = Bounds(a.hi, batch, head);
    if (!a.gap_lo) return;
    gap_lo_ = Bounds(a.gap_lo, batch, head), gap_hi_ = Bounds(a.gap_hi, batch, head);
  }

  RowKeys keys(int64_t query) const {
    if (lo_.first == nullptr) return {0, keys_, 0, 0};
    const bool gaps = gap_lo_.first != nullptr;
    return row_keys(lo_[query], hi_[query], gaps ? gap_lo_[query] : 0, gaps ? gap_hi_[query] : 0,
                    keys_);
  }
  // From the first to the last key.
  KeySpan span(int64_t query) const {
    const RowKeys seen = keys(query);
    return {seen.lo, seen.hi};
  }
  int64_t count(int64_t query) const { return keys(query).count(); }

 private:
  struct Bounds {
    const int32_t* first = nullptr;
    int64_t step = 0;

    Bounds() = default;
    Bounds(const View& view, int64_t batch, int64_t head)
        : first(view.at<int32_t>(batch * view.stride[0] + head * view.stride[1])),
          step(view.stride[2]) {}
    int64_t operator[](int64_t query) const { return first[query * step]; }
  };

  Bounds lo_, hi_, gap_lo_, gap_hi_;
  int64_t keys_;
};

// Whether rows differ along batch entries (axis 0) or heads (axis 1).
inline bool rows_differ(const AttentionArgs& a, int axis) {
  return a.lo && (a.lo.stride[axis] != 0 || a.hi.stride[axis] != 0);
}

}  // namespace tegula
