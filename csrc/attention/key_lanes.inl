// Few rows against keys or values as they lie in memory: scores[row][key], keys in the lanes. The
// memory decides how long it takes, so nothing is packed, and what comes next is sent for.
#pragma once

#include "in_tile.inl"

namespace tegula {
namespace {

// Calls body(rows as a constant) for the rows that the products of a block of few rows count.
template <class C, class Body>
TEGULA_INLINE void for_few_rows(const Block<C>& block, Body&& body) {
  switch (multiplied(block.rows)) {
    case 1: return body(Constant<1>{});
    case 2: return body(Constant<2>{});
    default: body(Constant<kFewRows>{});
  }
}

// So far ahead of their use rows are sent for: the time that memory takes.
inline constexpr int64_t kAheadBytes = 16384;

// Rows of a key or value tile as they lie in memory.
template <class T>
struct StoredRows {
  const T* first;
  int64_t row_step, step, dim, count;
  int64_t exist;  // rows that may be sent for ahead of their use, some behind the tile
  int64_t ahead;  // how many rows before they are used

  // Sends for the rows that follow on [begin, end).
  TEGULA_NOINLINE void send_ahead(int64_t begin, int64_t end) const {
    for (int64_t row = begin + ahead; row < smaller(end + ahead, exist); ++row) {
      for (int64_t d = 0; d < dim; d += 64 / static_cast<int64_t>(sizeof(T))) {
        __builtin_prefetch(first + row * row_step + d, 0, 2);
      }
    }
    asm volatile("");  // or the compiler sees a function without effects, and drops its calls
  }
};

template <class T, class F>
TEGULA_INLINE StoredRows<T> stored_rows(const Context<T, F>& c, const View& view, const T* first) {
  const bool sent_for = c.keys_are_far() && view.step(0) == 1 && view.size(0) > 0;
  const int64_t bytes = view.size(0) * static_cast<int64_t>(sizeof(T));
  return {first,
          view.step(1),
          view.step(0),
          view.size(0),
          c.tile.count,
          sent_for ? c.a.k_len - c.tile.begin : 0,
          sent_for ? kAheadBytes / bytes : 0};
}
template <class T, class F>
TEGULA_INLINE StoredRows<T> stored_keys(const Context<T, F>& c) {
  return stored_rows(c, c.a.k, c.key_row(0));
}
template <class T, class F>
TEGULA_INLINE StoredRows<T> stored_values(const Context<T, F>& c) {
  return stored_rows(c, c.a.v, c.value_row(0));
}

// Few rows: scores[row][key] for kRows rows and the kLanes keys from `key` of the tile on. The
// keys' rows turn into columns on their way from memory; where that needs more than whole
// vectors as they lie, through `columns`. Keys further on are sent for in the order in which they
// lie, a few with each step: the hardware neither foresees the order of turning, nor keeps
// many requests at once.
template <class F, int kRows, class T>
TEGULA_NOINLINE void score_key_lanes(const StoredRows<T>& keys, int32_t key,
                                     const typename F::Unit* rows, int64_t row_units,
                                     typename F::Unit* columns, typename F::Compute* scores) {
  using C = typename F::Compute;
  using Unit = typename F::Unit;
  constexpr int kN = kLanes<Unit>;
  const int64_t step = keys.step, row_step = keys.row_step;
  const int64_t units = (keys.dim + F::kUnitValues - 1) / F::kUnitValues;
  Vec<C> sum[kRows] = {};
  const auto add = [&](int64_t unit, Vec<Unit> column) {
    TEGULA_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      sum[r] = F::multiply_add(sum[r], broadcast(rows[r * row_units + unit]), column);
    }
  };
  int64_t unit = 0;
  // Lanes behind the last key repeat it; nobody sees them.
  const int64_t last = keys.count - 1 - key;
  const auto offset = [&](int i) { return smaller(i, last) * row_step; };
  const T* first = keys.first + key * row_step;
  if constexpr (Packing<F, T>::kAsStored) {
    if (step == 1) {
      const int64_t whole = keys.dim / F::kUnitValues / kN * kN;
      for (; unit < whole; unit += kN) {
        if (keys.exist > 0) {
          keys.send_ahead(key + unit * kN / whole, key + (unit + kN) * kN / whole);
        }
        const T* from = first + unit * F::kUnitValues;
        Vec<Unit> turned[kN];
        load_transposed<Unit>(
            [&](int i) { return reinterpret_cast<const Unit*>(from + offset(i)); }, turned);
        TEGULA_UNROLL(16)
        for (int i = 0; i < kN; ++i) add(unit + i, turned[i]);
      }
    }
  }
  if (const int64_t done = unit; done < units) {
    const T* from = first + done * F::kUnitValues * step;
    const T* lanes[kN];
    for (int i = 0; i < kN; ++i) lanes[i] = from + offset(i);
    pack_columns<F>(lanes, step, keys.dim - done * F::kUnitValues, C(1), columns, kN);
    for (; unit < units; ++unit) add(unit, load(columns + (unit - done) * kN));
  }
  for (int r = 0; r < kRows; ++r) store(scores + r * kKeyTile<F> + key, sum[r]);
}

// So few last keys of a tile are not worth turning a whole vector of them.
inline constexpr int kLastKeys = 4;

// The same for the last few keys of the tile.
template <class F, int kRows, class C>
TEGULA_NOINLINE void score_last_keys(const StoredRows<C>& keys, int32_t key, const C* rows,
                                     int64_t row_units, C* scores) {
  using Short = typename VecType<C, kLastKeys * sizeof(C)>::Aligned;
  const C* lanes[kLastKeys];
  for (int i = 0; i < kLastKeys; ++i) {
    lanes[i] = keys.first + smaller(key + i, keys.count - 1) * keys.row_step;
  }
  Short sum[kRows] = {};
  TEGULA_UNROLL(4)
  for (int64_t d = 0; d < keys.dim; ++d) {
    const Short column = {lanes[0][d], lanes[1][d], lanes[2][d], lanes[3][d]};
    TEGULA_UNROLL(4)
    for (int r = 0; r < kRows; ++r) sum[r] = sum[r] + rows[r * row_units + d] * column;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kLastKeys; ++i) scores[r * kKeyTile<F> + key + i] = sum[r][i];
  }
}

// The same for keys `range` of the tile, whole vectors, and rows given one after the other.
template <int kRows, class T, class F>
TEGULA_INLINE void score_rows(Context<T, F>& c, const StoredRows<T>& keys,
                              const typename F::Unit* rows, int64_t row_units, KeyRange range) {
  for (int32_t key = range.begin; key < range.end; key += kLanes<typename F::Compute>) {
    if constexpr (sizeof(T) == sizeof(typename F::Compute)) {
      if (keys.count - key <= kLastKeys && keys.step == 1) {
        return score_last_keys<F, kRows>(keys, key, rows, row_units, c.w.scores);
      }
    }
    score_key_lanes<F, kRows>(keys, key, rows, row_units, c.w.key_columns, c.w.scores);
  }
}

}  // namespace
}  // namespace tegula
