// What rows see under a mask's intervals, read for planning: how much work a row is, and where
// rows part that share no key.
#pragma once

#include <algorithm>

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
    lo_ = a.lo.at<int32_t>(batch * a.lo.stride[0] + head * a.lo.stride[1]);
    hi_ = a.hi.at<int32_t>(batch * a.hi.stride[0] + head * a.hi.stride[1]);
    lo_step_ = a.lo.stride[2], hi_step_ = a.hi.stride[2];
  }

  // From the first to the last key.
  KeySpan span(int64_t query) const {
    if (lo_ == nullptr) return {0, keys_};
    return {std::max<int64_t>(0, lo_[query * lo_step_]),
            std::min<int64_t>(keys_, hi_[query * hi_step_])};
  }
  int64_t count(int64_t query) const {
    const KeySpan keys = span(query);
    return std::max<int64_t>(0, keys.end - keys.begin);
  }

 private:
  const int32_t *lo_ = nullptr, *hi_ = nullptr;
  int64_t lo_step_ = 0, hi_step_ = 0;
  int64_t keys_;
};

// Whether rows differ along batch entries (axis 0) or heads (axis 1).
inline bool rows_differ(const AttentionArgs& a, int axis) {
  return a.lo && (a.lo.stride[axis] != 0 || a.hi.stride[axis] != 0);
}

}  // namespace tegula
