// The rows of mask.h. A row of out is three runs of equal elements - hidden, visible,
// hidden - so that all but the two vectors on the borders are stores of a constant. A row with a
// gap is two such rows.
#pragma once

#include "../simd/vec.h"
#include "mask.h"
#include "row_keys.h"

namespace tegula {
namespace {

// Columns of a strided row that are gathered at a time.
inline constexpr int64_t kGathered = 1024;

// Steps through the rows of (B, H, Lq) without dividing for each.
struct MaskRow {
  int64_t heads, queries;
  int64_t b, h, i;

  MaskRow(const View& array, int64_t row) : heads(array.shape[1]), queries(array.shape[2]) {
    i = row % queries;
    h = row / queries % heads;
    b = row / queries / heads;
  }
  TEGULA_INLINE void next() {
    if (++i < queries) return;
    i = 0;
    if (++h < heads) return;
    h = 0;
    ++b;
  }
  TEGULA_INLINE int64_t offset(const View& v) const {
    return b * v.stride[0] + h * v.stride[1] + i * v.stride[2];
  }
};

// The bytes of `count` keys from `column` on: in place where they are consecutive.
TEGULA_INLINE const int8_t* key_bytes(const int8_t* row, int64_t stride, int64_t column,
                                      int64_t count, int8_t* gathered) {
  if (stride == 1) return row + column;
  for (int64_t j = 0; j < count; ++j) gathered[j] = row[(column + j) * stride];
  return gathered;
}

// ---- fill ----

// T is the integer as wide as an element: its bits are all that matters.
template <class T>
struct MaskFill {
  static constexpr int64_t kN = kLanes<T>;
  Vec<T> lanes = lane_numbers<T>();
  T hidden, visible;

  TEGULA_INLINE static T within(int64_t bound) {
    return static_cast<T>(bound < 0 ? 0 : bound > kN ? kN : bound);
  }
  TEGULA_INLINE Vec<T> select(Vec<T> shown) const { return (visible & shown) | (hidden & ~shown); }

  // Lanes whose columns, from `column` on, lie in [lo, hi).
  TEGULA_INLINE Vec<T> inside(int64_t column, int64_t lo, int64_t hi) const {
    const T from = within(lo - column), to = within(hi - column);
    return bits_as<T>((lanes >= from) & (lanes < to));
  }

  template <bool kStreaming>
  TEGULA_INLINE static void put(T* p, Vec<T> v) {
    if constexpr (kStreaming) {
      store_streaming(p, v);
    } else {
      store(p, v);
    }
  }

  TEGULA_INLINE static void put_some(T* p, Vec<T> v, int64_t count) {
    for (int64_t j = 0; j < count; ++j) p[j] = v[j];
  }

  template <bool kStreaming>
  void runs(T* out, int64_t n, int64_t lo, int64_t hi) const {
    if (n < kN) return put_some(out, select(inside(0, lo, hi)), n);
    // The vectors that lie on aligned addresses, and both ends where they do not.
    const auto misplaced = reinterpret_cast<uintptr_t>(out) / sizeof(T) % kN;
    const int64_t first = misplaced == 0 ? 0 : kN - static_cast<int64_t>(misplaced);
    const int64_t count = (n - first) / kN;
    if (first > 0) store_unaligned(out, select(inside(0, lo, hi)));
    if (first + count * kN < n) store_unaligned(out + n - kN, select(inside(n - kN, lo, hi)));
    const auto vector_of = [&](int64_t column) {
      const int64_t index = column <= first ? 0 : (column - first) / kN;
      return index < count ? index : count;
    };
    const int64_t lo_vector = vector_of(lo), hi_vector = vector_of(hi);
    T* p = out + first;
    const Vec<T> all_hidden = broadcast<T>(hidden), all_visible = broadcast<T>(visible);
    int64_t at = 0;
    for (; at < lo_vector; ++at) put<kStreaming>(p + at * kN, all_hidden);
    if (at < count) {
      put<kStreaming>(p + at * kN, select(inside(first + at * kN, lo, hi)));
      ++at;
    }
    for (; at < hi_vector; ++at) put<kStreaming>(p + at * kN, all_visible);
    if (at == hi_vector && at < count) {
      put<kStreaming>(p + at * kN, select(inside(first + at * kN, lo, hi)));
      ++at;
    }
    for (; at < count; ++at) put<kStreaming>(p + at * kN, all_hidden);
  }

  // One byte a lane, as lanes of T.
  typedef int8_t Bytes __attribute__((vector_size(kN), aligned(1), may_alias));

  TEGULA_INLINE Vec<T> shown(const int8_t* keys, int64_t column, int64_t lo, int64_t hi) const {
    const Vec<T> wide = __builtin_convertvector(*reinterpret_cast<const Bytes*>(keys), Vec<T>);
    return bits_as<T>(wide != 0) & inside(column, lo, hi);
  }

  void dense(T* out, int64_t n, int64_t lo, int64_t hi, const int8_t* keys) const {
    if (n < kN) {
      int8_t some[kN] = {};
      for (int64_t j = 0; j < n; ++j) some[j] = keys[j];
      return put_some(out, select(shown(some, 0, lo, hi)), n);
    }
    for (int64_t at = 0; at < n; at += kN) {
      if (at > n - kN) at = n - kN;
      store_unaligned(out + at, select(shown(keys + at, at, lo, hi)));
    }
  }

  // A row whose elements do not lie side by side.
  void strided(T* out, int64_t stride, int64_t n, int64_t lo, int64_t hi, const int8_t* keys,
               int64_t key_stride) const {
    for (int64_t j = 0; j < n; ++j) {
      const bool seen = lo <= j && j < hi && (keys == nullptr || keys[j * key_stride] != 0);
      out[j * stride] = seen ? visible : hidden;
    }
  }
};

template <class T>
void fill_mask_rows(const MaskFillArgs& a, int64_t begin, int64_t end, bool streaming, T hidden,
                    T visible) {
  MaskFill<T> fill;
  fill.hidden = hidden;
  fill.visible = visible;
  const int64_t n = a.out.shape[3];
  MaskRow row(a.out, begin);
  int8_t gathered[kGathered];
  const auto bound = [&](const View& view) { return *view.at<int32_t>(row.offset(view)); };
  // Columns [from, to) of the row in work, which sees [lo, hi) of them.
  const auto fill_columns = [&](int64_t from, int64_t to, int64_t lo, int64_t hi) {
    const int64_t count = to - from, step = a.out.stride[3];
    T* out = a.out.at<T>(row.offset(a.out)) + from * step;
    const int64_t key_stride = a.dense ? a.dense.stride[3] : 0;
    const int8_t* keys = nullptr;
    if (a.dense) keys = a.dense.at<int8_t>(row.offset(a.dense)) + from * key_stride;
    lo -= from, hi -= from;
    if (step != 1) {
      fill.strided(out, step, count, lo, hi, keys, key_stride);
    } else if (keys == nullptr) {
      // A vector on a row's border is stored both ways, which costs more than streaming
      // gains, unless borders are rare.
      const bool whole = (reinterpret_cast<uintptr_t>(out) | count * sizeof(T)) % kVectorBytes == 0;
      streaming && (whole || n >= 256 * fill.kN) ? fill.template runs<true>(out, count, lo, hi)
                                                 : fill.template runs<false>(out, count, lo, hi);
    } else {
      const int64_t piece = key_stride == 1 ? count : kGathered;
      for (int64_t j = 0; j < count; j += piece) {
        const int64_t some = count - j < piece ? count - j : piece;
        fill.dense(out + j, some, lo - j, hi - j, key_bytes(keys, key_stride, j, some, gathered));
      }
    }
  };
  for (int64_t r = begin; r < end; ++r, row.next()) {
    const RowKeys keys = row_keys(bound(a.lo), bound(a.hi), a.gap_lo ? bound(a.gap_lo) : 0,
                                  a.gap_lo ? bound(a.gap_hi) : 0, n);
    if (!keys.has_gap()) {
      fill_columns(0, n, keys.lo, keys.hi);
      continue;
    }
    // Within the gap, on whole vectors where it holds one.
    int64_t middle = (keys.gap_lo + fill.kN - 1) / fill.kN * fill.kN;
    if (middle > keys.gap_hi) middle = keys.gap_lo;
    fill_columns(0, middle, keys.lo, keys.gap_lo);
    fill_columns(middle, n, keys.gap_hi, keys.hi);
  }
  if (streaming) stream_fence();
}

void mask_fill_rows(const MaskFillArgs& a, int64_t begin, int64_t end, bool streaming) {
  constexpr int64_t kMinusInfinity64 = static_cast<int64_t>(0xFFF0000000000000u);
  constexpr int32_t kMinusInfinity32 = static_cast<int32_t>(0xFF800000u);
  constexpr int16_t kMinusInfinity16 = static_cast<int16_t>(0xFC00u);
  constexpr int16_t kMinusInfinityB16 = static_cast<int16_t>(0xFF80u);
  switch (a.out.dtype) {
    case DType::kFloat64:
      return fill_mask_rows<int64_t>(a, begin, end, streaming, kMinusInfinity64, 0);
    case DType::kFloat32:
      return fill_mask_rows<int32_t>(a, begin, end, streaming, kMinusInfinity32, 0);
    case DType::kFloat16:
      return fill_mask_rows<int16_t>(a, begin, end, streaming, kMinusInfinity16, 0);
    case DType::kBFloat16:
      return fill_mask_rows<int16_t>(a, begin, end, streaming, kMinusInfinityB16, 0);
    default: return fill_mask_rows<int8_t>(a, begin, end, streaming, 0, 1);
  }
}

// ---- scan ----

inline constexpr int64_t kScanStep = 4 * kVectorBytes;  // bytes looked at together
inline constexpr uint64_t kLowBits = 0x0101010101010101u;

TEGULA_INLINE uint64_t eight_bytes(const int8_t* p) {
  uint64_t word;
  __builtin_memcpy(&word, p, 8);
  return word;
}

// The top bit of the first byte that is 0, counted from the lowest one; 0 without any.
TEGULA_INLINE uint64_t zero_bytes(uint64_t word) {
  return (word - kLowBits) & ~word & (kLowBits << 7);
}

// The first of n bytes that is not 0 (kZero: that is 0); n when there is none.
template <bool kZero>
TEGULA_INLINE int64_t find_first(const int8_t* p, int64_t n) {
  int64_t at = 0;
  for (; at + kScanStep <= n; at += kScanStep) {
    Vec<int8_t> found{};
    TEGULA_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const Vec<int8_t> v = load_unaligned(p + at + i * kVectorBytes);
      found |= kZero ? bits_as<int8_t>(v == 0) : v;
    }
    if (any_lane(found)) break;
  }
  for (; at + 8 <= n; at += 8) {
    const uint64_t word = eight_bytes(p + at);
    const uint64_t found = kZero ? zero_bytes(word) : word;
    if (found != 0) return at + __builtin_ctzll(found) / 8;
  }
  for (; at < n; ++at) {
    if ((p[at] == 0) == kZero) return at;
  }
  return n;
}

// One past the last of n bytes that is not 0; 0 when there is none.
TEGULA_INLINE int64_t find_end(const int8_t* p, int64_t n) {
  for (; n >= kScanStep; n -= kScanStep) {
    Vec<int8_t> found{};
    TEGULA_UNROLL(4)
    for (int i = 1; i <= 4; ++i) found |= load_unaligned(p + n - i * kVectorBytes);
    if (any_lane(found)) break;
  }
  for (; n >= 8; n -= 8) {
    const uint64_t word = eight_bytes(p + n - 8);
    if (word != 0) return n - __builtin_clzll(word) / 8;
  }
  for (; n > 0; --n) {
    if (p[n - 1] != 0) return n;
  }
  return 0;
}

// The runs of one row: the first two, and where the last one ends.
struct ScannedRow {
  int32_t begins[2], ends[2];
  int32_t end = 0;
  int count = 0;  // more than two are not told apart

  // Takes the next `n` keys, from `first` on.
  TEGULA_INLINE void add(const int8_t* p, int64_t n, int64_t first) {
    for (int64_t at = 0; at < n;) {
      at += find_first<false>(p + at, n - at);
      if (at == n) return;
      const int32_t begin = static_cast<int32_t>(first + at);
      const bool goes_on = count > 0 && begin == end;  // from the piece before
      if (count + !goes_on > 2) {
        count = 3;
        end = static_cast<int32_t>(first + at + find_end(p + at, n - at));
        return;
      }
      at += find_first<true>(p + at, n - at);
      end = static_cast<int32_t>(first + at);
      if (!goes_on) begins[count++] = begin;
      ends[count - 1] = end;
    }
  }
};

MaskRuns mask_scan_rows(const MaskScanArgs& a, int64_t begin, int64_t end) {
  const int64_t n = a.dense.shape[3], stride = a.dense.stride[3];
  const int64_t step = stride == 1 ? n : kGathered;
  MaskRow row(a.dense, begin);
  int8_t gathered[kGathered];
  int most = 1;
  const auto note = [&](const View& view, int64_t value) {
    *view.at<int32_t>(row.offset(view)) = static_cast<int32_t>(value);
  };
  for (int64_t r = begin; r < end; ++r, row.next()) {
    const int8_t* keys = a.dense.at<int8_t>(row.offset(a.dense));
    ScannedRow found;
    for (int64_t j = 0; j < n; j += step) {
      const int64_t count = n - j < step ? n - j : step;
      found.add(key_bytes(keys, stride, j, count, gathered), count, j);
    }
    const bool gap = found.count > 1;
    note(a.lo, found.count > 0 ? found.begins[0] : n);
    note(a.hi, found.end);
    note(a.gap_lo, gap ? found.ends[0] : found.end);
    note(a.gap_hi, gap ? found.begins[1] : found.end);
    most = found.count > most ? found.count : most;
  }
  return most == 1 ? MaskRuns::kOne : most == 2 ? MaskRuns::kTwo : MaskRuns::kMore;
}

// ---- cells ----

// Takes the bytes of one row of a cell, `n` of them, into what has been seen of it.
TEGULA_INLINE void add_to_cell(const int8_t* p, int64_t n, bool& any, bool& gap) {
  static_assert(kCellKeys % kVectorBytes == 0);
  if (n < kCellKeys) {
    for (int64_t j = 0; j < n; ++j) (p[j] != 0 ? any : gap) = true;
    return;
  }
  Vec<int8_t> seen{}, hidden{};
  for (int64_t j = 0; j < kCellKeys; j += kVectorBytes) {
    const Vec<int8_t> v = load_unaligned(p + j);
    seen |= v;
    hidden |= bits_as<int8_t>(v == 0);
  }
  any |= any_lane(seen);
  gap |= any_lane(hidden);
}

void mask_cell_rows(const MaskCellsArgs& a, int64_t begin, int64_t end) {
  static_assert(kGathered % kCellKeys == 0);
  constexpr int64_t kCells = kGathered / kCellKeys;
  const int64_t n = a.dense.shape[3], stride = a.dense.stride[3];
  MaskRow row(a.cells, begin);
  int8_t gathered[kGathered];
  for (int64_t r = begin; r < end; ++r, row.next()) {
    uint8_t* cells = a.cells.at<uint8_t>(r * a.cells.shape[3]);
    const int64_t first = row.i * kCellQueries;
    const int64_t rest = a.dense.shape[2] - first;
    const int64_t queries = rest < kCellQueries ? rest : kCellQueries;
    for (int64_t j = 0; j < n; j += kGathered) {
      const int64_t count = n - j < kGathered ? n - j : kGathered;
      bool any[kCells] = {}, gap[kCells] = {};
      for (int64_t i = 0; i < queries; ++i) {
        const int8_t* keys =
            a.dense.at<int8_t>(row.b * a.dense.stride[0] + row.h * a.dense.stride[1] +
                               (first + i) * a.dense.stride[2]);
        const int8_t* p = key_bytes(keys, stride, j, count, gathered);
        for (int64_t cell = 0; cell * kCellKeys < count; ++cell) {
          const int64_t some = count - cell * kCellKeys;
          add_to_cell(p + cell * kCellKeys, some < kCellKeys ? some : kCellKeys, any[cell],
                      gap[cell]);
        }
      }
      for (int64_t cell = 0; cell * kCellKeys < count; ++cell) {
        cells[j / kCellKeys + cell] = !any[cell] ? kHidden : gap[cell] ? kMixed : kShown;
      }
    }
  }
}

constexpr MaskKernels mask_kernels() { return {mask_fill_rows, mask_scan_rows, mask_cell_rows}; }

}  // namespace
}  // namespace tegula
