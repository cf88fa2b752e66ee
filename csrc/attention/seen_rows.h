// What rows see under a mask, read for planning: how much work a row is, and where rows part that
// share no key.
#pragma once

#include <algorithm>

#include "../mask/mask.h"
#include "../mask/row_keys.h"
#include "attention.h"

namespace tegula {

struct KeySpan {
  int64_t begin = 0, end = 0;

  bool empty() const { return end <= begin; }
  int64_t count() const { return std::max<int64_t>(0, end - begin); }
};

inline KeySpan hull(KeySpan a, KeySpan b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}
inline KeySpan common(KeySpan a, KeySpan b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// The rows of one batch entry and head.
class SeenRows {
 public:
  SeenRows(const AttentionArgs& a, int64_t batch, int64_t head) : keys_(a.k_len) {
    const auto row_of = [&](const View& view) {
      return Row{view ? view.data : nullptr, batch * view.stride[0] + head * view.stride[1],
                 view.stride[2]};
    };
    lo_ = row_of(a.lo), hi_ = row_of(a.hi);
    gap_lo_ = row_of(a.gap_lo), gap_hi_ = row_of(a.gap_hi);
    cells_ = row_of(a.cells);
  }

  RowKeys keys(int64_t query) const {
    if (lo_.data == nullptr) return {0, keys_, 0, 0};
    return row_keys(lo_.bound(query), hi_.bound(query), gap_lo_.bound(query), gap_hi_.bound(query),
                    keys_);
  }
  // From the first to the last key.
  KeySpan span(int64_t query) const {
    const RowKeys seen = keys(query);
    return {seen.lo, seen.hi};
  }
  // How many of the keys `of` the row computes: all that its intervals show, but those in cells
  // that a dense mask hides.
  int64_t count(int64_t query, KeySpan of) const {
    const RowKeys seen = keys(query);
    const KeySpan gap{seen.gap_lo, seen.gap_hi};
    of = common(of, {seen.lo, seen.hi});
    if (cells_.data == nullptr) return of.count() - common(of, gap).count();
    const uint8_t* cells = cells_.at<uint8_t>(query / kCellQueries);
    int64_t count = 0;
    for (int64_t key = of.begin; key < of.end;) {
      const int64_t cell = key / kCellKeys, end = std::min(of.end, (cell + 1) * kCellKeys);
      if (cells[cell] != kHidden) count += end - key - common({key, end}, gap).count();
      key = end;
    }
    return count;
  }
  int64_t count(int64_t query) const { return count(query, {0, keys_}); }

 private:
  struct Row {
    const void* data = nullptr;
    int64_t offset = 0, step = 0;

    template <class T>
    const T* at(int64_t query) const {
      return static_cast<const T*>(data) + offset + query * step;
    }
    int64_t bound(int64_t query) const { return data == nullptr ? 0 : *at<int32_t>(query); }
  };

  Row lo_, hi_, gap_lo_, gap_hi_, cells_;
  int64_t keys_;
};

// To read a row and to write its results takes as long as so many keys do.
inline constexpr int64_t kRowKeys = 8;

// The rows of the `queries` queries from `first_query` on, of heads from `first_head` on, head by
// head: calls visit(rows of the head, query) for rows [begin, end).
template <class Visit>
void each_row(const AttentionArgs& a, int64_t batch, int64_t first_head, int64_t first_query,
              int64_t queries, int64_t begin, int64_t end, Visit&& visit) {
  for (int64_t row = begin; row < end;) {
    const int64_t head = row / queries;
    const SeenRows rows(a, batch, first_head + head);
    for (; row < std::min(end, (head + 1) * queries); ++row) {
      visit(rows, first_query + row - head * queries);
    }
  }
}

// Whether rows differ along batch entries (axis 0) or heads (axis 1).
inline bool rows_differ(const AttentionArgs& a, int axis) {
  const auto differs = [&](const View& view) { return view && view.stride[axis] != 0; };
  return differs(a.lo) || differs(a.hi) || differs(a.gap_lo) || differs(a.gap_hi) ||
         differs(a.cells);
}

}  // namespace tegula
