// The rows of a task: where they live, what they see, and their share of the scratch.
#pragma once

#include "../mask/mask.h"
#include "../mask/row_keys.h"
#include "attention.h"
#include "pack.inl"

namespace tegula {
namespace {

// Rows of a block share a score tile: kBlockVectors vectors, a row in each lane.
template <class C>
inline constexpr int kBlockRows = kBlockVectors * kLanes<C>;

// Keys of a score tile: as many units in every format. Tiles lie at multiples of it.
template <class F>
inline constexpr int kKeyTile = 256 * F::kUnitValues;
// Keys of a tile of the backward pass.
inline constexpr int kGradientTile = 128;
// Ranges of scores and weights are rounded to this many keys: what one Philox call
// decides, and a whole number of units in every format.
inline constexpr int kKeyQuad = 4;
// Up to this many rows, keys lie in the lanes instead of rows.
inline constexpr int kFewRows = 4;
// As many of those rows as their products count.
TEGULA_INLINE int multiplied(int few_rows) { return few_rows <= 2 ? few_rows : kFewRows; }
// A block of this many rows and kLongKeys keys for each ends where a row sees nothing of what
// the block sees, as at the border of two packed documents. Shorter documents share a block.
inline constexpr int kLongKeys = 2;
template <class C>
inline constexpr int kCutRows = kLanes<C> / 2 > kFewRows ? kLanes<C> / 2 : kFewRows + 1;

// Rows that the backward pass may give to a task of their own: none of its blocks lies across
// a multiple of it.
template <class C>
inline constexpr int kRowChunk = 192 / kBlockRows<C> * kBlockRows<C>;

static_assert(kKeyChunk % 512 == 0 && 128 % kKeyQuad == 0);

// Rows of a value tile. Such a group lies within one vector of rows and shares a key range.
template <class C>
inline constexpr int kGroup = kGroupRows < kLanes<C> ? kGroupRows : kLanes<C>;

// Half-open range of keys; empty when end <= begin.
struct KeyRange {
  int32_t begin, end;

  TEGULA_INLINE bool empty() const { return end <= begin; }
};

TEGULA_INLINE KeyRange intersect(KeyRange a, KeyRange b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

// `range` without `gap` where that reaches one of its ends; a gap in its middle stays.
TEGULA_INLINE KeyRange trimmed(KeyRange range, KeyRange gap) {
  if (gap.begin <= range.begin && gap.end > range.begin) range.begin = gap.end;
  if (gap.end >= range.end && gap.begin < range.end) range.end = gap.begin;
  return range;
}

// The longer of the two parts of `range` beside `gap`.
TEGULA_INLINE KeyRange longest_beside(KeyRange range, KeyRange gap) {
  if (intersect(range, gap).empty()) return range;
  if (gap.begin - range.begin >= range.end - gap.end) return {range.begin, gap.begin};
  return {gap.end, range.end};
}

// What some row of a set sees, and what every one of them sees.
struct Sight {
  KeyRange some, every;
};

// Rows without a key have lo = kNever and hi = -1: they spoil no minimum or maximum.
inline constexpr int32_t kNever = INT32_MAX;

TEGULA_INLINE Sight blind() { return {{kNever, -1}, {-1, kNever}}; }
TEGULA_INLINE void widen(KeyRange& some, KeyRange range) {
  if (range.begin < some.begin) some.begin = range.begin;
  if (range.end > some.end) some.end = range.end;
}
TEGULA_INLINE void add_row(Sight& sight, KeyRange some, KeyRange every) {
  widen(sight.some, some);
  if (every.begin > sight.every.begin) sight.every.begin = every.begin;
  if (every.end < sight.every.end) sight.every.end = every.end;
}

// Up to kBlockRows consecutive rows of a task.
template <class C>
struct Block {
  int64_t slot;  // of the first row in the per-row arrays: a multiple of kLanes<C>
  int rows;
  int number;  // among the blocks of the task
  bool few;    // so few rows that keys lie in the lanes
  Sight gap;   // keys between the two runs of some row, and of every row
  Sight sight;
  Sight lanes[kBlockVectors];                  // of each vector of rows
  KeyRange groups[kBlockRows<C> / kGroup<C>];  // what some row of a group sees

  TEGULA_INLINE int vectors() const { return (rows + kLanes<C> - 1) / kLanes<C>; }
  TEGULA_INLINE int width() const { return vectors() * kLanes<C>; }
};

// What the rows are read for.
enum class Pass { kForward, kBackward };

// Memory given out piece by piece. Taken from a null pointer it measures what is needed.
struct Memory {
  char* next;

  template <class T>
  TEGULA_INLINE T* take(int64_t count) {
    T* taken = reinterpret_cast<T*>(next);
    next += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return taken;
  }
};

// What one task needs for its rows, and for the tile in work; what only one pass needs has no
// room in the other's.
template <class F>
struct Workspace : Memory {
  using C = typename F::Compute;
  using Unit = typename F::Unit;
  static constexpr int64_t kTile = kKeyTile<F> * kBlockRows<C>;

  int64_t units;         // of a q or k row
  int64_t packed_units;  // the same in whole vectors
  int64_t value_stride;  // Dv in whole vectors
  int64_t rows;          // at most, of all blocks, each padded to whole vectors

  Block<C>* blocks;
  // Per row.
  Unit* queries;                              // see pack_queries
  C *best, *total, *sum;                      // of the chunk: maximum, sum of weights, of values
  C *all_best, *all_total, *all_sum;          // of the chunks before
  Int<C>*lo, *hi, *gap_lo, *gap_hi;           // what it sees; the gap only where a mask has some
  Int<C>*head, *query;                        // where it stands
  UInt<C>*lead_low, *lead_high;               // for dropout: words of batch * H + head
  C* slope;                                   // ALiBi
  C *tile_best, *tile_sum, *shift, *rescale;  // of the block in work
  // Per tile.
  C *scores, *additive;
  Unit *weights, *keys, *key_columns, *values, *clean_values;

  // Blocks of so many rows at most, and rows with those that fill the blocks' last vectors.
  // Only under a mask may a block be shorter than it could be.
  TEGULA_INLINE static int64_t block_limit_of(const AttentionArgs& a, int64_t rows) {
    const int64_t shortest = a.lo ? smaller(kCutRows<C>, kBlockRows<C>) : kBlockRows<C>;
    return rows / shortest + rows / kRowChunk<C> + 2;
  }
  TEGULA_INLINE static int64_t slots_of(const AttentionArgs& a, int64_t rows) {
    return round_up(rows, kLanes<C>) + block_limit_of(a, rows) * kLanes<C>;
  }

  TEGULA_INLINE Workspace(const AttentionArgs& a, int64_t task_rows, Pass pass, void* memory)
      : Memory{static_cast<char*>(memory)} {
    units = (a.dim + F::kUnitValues - 1) / F::kUnitValues;
    packed_units = round_up(units, kLanes<Unit>);
    value_stride = round_up(a.value_dim, kLanes<C>);
    const int64_t block_limit = block_limit_of(a, task_rows);
    rows = slots_of(a, task_rows);

    blocks = take<Block<C>>(block_limit);
    queries = take<Unit>(rows * packed_units);
    lo = take<Int<C>>(rows), hi = take<Int<C>>(rows);
    gap_lo = take<Int<C>>(rows), gap_hi = take<Int<C>>(rows);
    head = take<Int<C>>(rows), query = take<Int<C>>(rows);
    lead_low = take<UInt<C>>(rows), lead_high = take<UInt<C>>(rows);
    slope = take<C>(rows);
    if (pass == Pass::kBackward) return;
    best = take<C>(rows), total = take<C>(rows), sum = take<C>(rows * value_stride);
    const int64_t chunk_rows = a.k_len > kKeyChunk ? rows : 0;
    all_best = take<C>(chunk_rows), all_total = take<C>(chunk_rows);
    all_sum = take<C>(chunk_rows * value_stride);
  }

  TEGULA_INLINE void take_tile(Pass pass) {
    constexpr int64_t kGradient = kGradientTile * kBlockRows<C>, kFew = kFewRows * kKeyTile<F>;
    const int64_t scored = pass == Pass::kForward ? kTile : (kGradient > kFew ? kGradient : kFew);
    scores = take<C>(scored), additive = take<C>(scored);
    // Of a key, in the backward pass also of a value.
    key_columns =
        take<Unit>(kLanes<Unit> * (packed_units > value_stride ? packed_units : value_stride));
    if (pass == Pass::kBackward) return;
    tile_best = take<C>(kBlockRows<C>), tile_sum = take<C>(kBlockRows<C>);
    shift = take<C>(kBlockRows<C>), rescale = take<C>(kBlockRows<C>);
    weights = take<Unit>(kTile);
    keys = take<Unit>(kKeyTile<F> * packed_units);
    values = take<Unit>(kKeyTile<F> * value_stride);
    clean_values = take<Unit>(kKeyTile<F> * value_stride);
  }
};

}  // namespace
}  // namespace tegula
