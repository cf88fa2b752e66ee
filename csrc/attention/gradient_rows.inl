// A backward task at work: the rows it reads, the keys it stands on, and its sums.
#pragma once

#include "backward.h"
#include "values.inl"

namespace tegula {
namespace {

// Rows whose weights over a tile of keys are kept before they meet grad_out and q.
template <class C>
inline constexpr int kGradientRows = 2 * kBlockRows<C>;
// Ranges of keys are widened to multiples of this, also those that a unit packs.
inline constexpr int kKeyStep = kGroupRows > kKeyQuad ? kGroupRows : kKeyQuad;

static_assert(kGradientKeys % kGradientTile == 0 && kGradientTile % kKeyStep == 0);
static_assert(kKeyStep % kGroupRows == 0 && kKeyStep % kKeyQuad == 0);

// Products of weights with rows are plain float32 (float64) for every type of input: the
// rounding of a weight to 16 bits would show in the gradient as much as the final one.
template <class F>
using SumFormat = PlainFormat<typename F::Compute>;

// Memory of a unit, which tasks may share, and of the cell in work.
template <class F>
struct GradWorkspace : Memory {
  using C = typename F::Compute;
  using Unit = typename F::Unit;

  // Blocks of up to kRowChunk rows, and the keys that some of them sees.
  struct RowChunk {
    int first, end;
    KeyRange sight;
  };

  int64_t dim_stride, value_stride;         // D and Dv in whole vectors
  int64_t value_units, packed_value_units;  // of a v or grad_out row
  int64_t packed_units;                     // of a k row

  RowChunk* row_chunks;
  // Per row.
  Unit* grad_columns;         // grad_out, block by block as columns [unit][width]
  C *query_rows, *grad_rows;  // q and grad_out as rows
  C *shift, *shift_rest;      // their sum is the log-sum-exp in the units of the scores
  Int<C>* split;              // all ones: they are peak and rest, see gradient_norms.inl
  C* delta;                   // rowsum(grad_out out) - grad_lse
  C* dq;
  // Per block: its rows stand above; they hold finite numbers only; lse is far from 0.
  bool *packed, *finite, *far;
  // Per key of the unit, or of the one chunk that stands here.
  Unit *key_units, *value_units_of_keys;
  C *key_rows, *dk, *dv;
  bool* tile_finite;  // per tile: its key_rows hold finite numbers only
  // Of the cell in work, where it is not the only one of its keys or rows.
  C *dq_cell, *dk_cell, *dv_cell;
  // Per key of the tile and row of the group, [key][kGradientRows].
  C *weights, *slopes;  // P with dropout, dS
  uint8_t* hidden;
  // Per key of the tile and row of the block, as the scores.
  C *undropped, *tangent;  // P, derivative of the softcap
  C* clean;                // rows without those that a key or a query must not meet
  Unit* measured_keys;     // of a tile, for rows far from 0

  // `keys`: a multiple of kGradientKeys.
  TEGULA_INLINE GradWorkspace(const AttentionGradArgs& a, const Workspace<F>& w, int64_t task_rows,
                              int64_t keys)
      : Memory{w.next} {
    dim_stride = round_up(a.dim, kLanes<C>);
    value_stride = w.value_stride;
    packed_units = w.packed_units;
    value_units = (a.value_dim + F::kUnitValues - 1) / F::kUnitValues;
    packed_value_units = round_up(value_units, kLanes<Unit>);
    const int64_t rows = w.rows;
    row_chunks = take<RowChunk>(task_rows / kRowChunk<C> + 2);
    grad_columns = take<Unit>(rows * packed_value_units);
    query_rows = take<C>(rows * dim_stride), grad_rows = take<C>(rows * value_stride);
    shift = take<C>(rows), shift_rest = take<C>(rows), delta = take<C>(rows);
    split = take<Int<C>>(rows);
    dq = take<C>(rows * dim_stride);
    packed = take<bool>(rows), finite = take<bool>(rows), far = take<bool>(rows);
    key_units = take<Unit>(keys * w.packed_units);
    value_units_of_keys = take<Unit>(keys * packed_value_units);
    key_rows = F::kUnitValues == 1 ? reinterpret_cast<C*>(key_units) : take<C>(keys * dim_stride);
    dk = take<C>(keys * dim_stride), dv = take<C>(keys * value_stride);
    tile_finite = take<bool>(keys / kGradientTile);
  }

  TEGULA_INLINE void take_cell(const AttentionGradArgs& a) {
    dq_cell = take<C>(Workspace<F>::slots_of(a, kRowChunk<C>) * dim_stride);
    dk_cell = take<C>(kGradientKeys * dim_stride), dv_cell = take<C>(kGradientKeys * value_stride);
    weights = take<C>(kGradientTile * kGradientRows<C>);
    slopes = take<C>(kGradientTile * kGradientRows<C>);
    hidden = take<uint8_t>(kGradientTile * kGradientRows<C>);
    const int64_t tile = kGradientTile * kBlockRows<C>;
    undropped = take<C>(a.dropout.active() ? tile : 0);
    tangent = take<C>(a.softcap > 0 ? tile : 0);
    constexpr int64_t kCleanRows =
        kGradientTile > kGradientRows<C> ? kGradientTile : kGradientRows<C>;
    clean = take<C>(kCleanRows * (dim_stride > value_stride ? dim_stride : value_stride));
    measured_keys = take<Unit>(kGradientTile * packed_units);
  }
};

// Rows within this log-sum-exp lose less than 2^-16 of a float32 weight, see
// gradient_norms.inl.
inline constexpr double kNearLogSum = 256.0;
TEGULA_INLINE bool is_far(double lse) {
  const double size = lse < 0 ? -lse : lse;
  return size > kNearLogSum && size < kInfinity<double>;
}

template <class T, class F>
struct GradContext;
template <class T, class F>
void split_log_sums(GradContext<T, F>& c, const Block<typename F::Compute>& block);

template <class T, class F>
struct GradContext : Context<T, F> {
  using C = typename F::Compute;
  using Unit = typename F::Unit;
  using Context<T, F>::a, Context<T, F>::w, Context<T, F>::tile, Context<T, F>::task;

  const AttentionGradArgs& g;
  GradWorkspace<F> s;
  // The chunk: its first key, their number, and where it lies in the arrays of keys.
  int32_t chunk_begin = 0, chunk_count = 0;
  int64_t chunk_place = 0;
  KeyRange chunk_keys{0, 0};  // those of the unit, counted from the chunk's first
  int row_chunk_count = 0;
  bool all_keys;  // the arrays hold the keys of the unit
  // What the cell adds to, as if it held all rows and keys.
  bool only_keys, only_rows;  // the unit has one key chunk, one row chunk
  C *dq_sum = nullptr, *dk_sum = nullptr, *dv_sum = nullptr;

  // The unit's memory is followed by the cell's, unless that has a place of its own.
  TEGULA_INLINE GradContext(const AttentionGradArgs& args, const AttentionTask& t, void* memory,
                            void* cell_memory)
      : Context<T, F>(args, t, Pass::kBackward, memory),
        g(args),
        s(args, w, t.row_end - t.row_begin,
          cell_memory == nullptr ? kGradientKeys
                                 : key_chunks_of(t.key_begin, t.key_end) * kGradientKeys),
        all_keys(cell_memory != nullptr),
        only_keys(key_chunks_of(t.key_begin, t.key_end) <= 1),
        only_rows(t.row_end - t.row_begin <= kRowChunk<C>) {
    w.next = cell_memory == nullptr ? s.next : static_cast<char*>(cell_memory);
    w.take_tile(Pass::kBackward);
    s.next = w.next;
    s.take_cell(args);
  }

  // Reads the rows: what they see, not yet what they hold.
  TEGULA_NOINLINE void begin() {
    this->read_rows();
    int count = 0;
    int64_t number = -1;
    for (int b = 0; b < this->block_count; ++b) {
      const Block<C>& block = w.blocks[b];
      const int64_t chunk = unit_row(block) / kRowChunk<C>;
      if (chunk != number) s.row_chunks[count++] = {b, b, {kNever, -1}};
      number = chunk;
      auto& rows = s.row_chunks[count - 1];
      rows.end = b + 1;
      if (block.sight.some.begin < rows.sight.begin) rows.sight.begin = block.sight.some.begin;
      if (block.sight.some.end > rows.sight.end) rows.sight.end = block.sight.some.end;
    }
    row_chunk_count = count;
    for (int b = 0; b < this->block_count; ++b) s.packed[b] = false;
    fill(s.dq, this->slots * s.dim_stride, C(0));
  }

  // Number of a block's first row in the unit.
  TEGULA_INLINE int64_t unit_row(const Block<C>& block) const {
    return (w.head[block.slot] - task.first_head) * (task.query_end - task.query_begin) +
           w.query[block.slot] - task.query_begin;
  }

  // `count` rows as they lie, widened, from `from` on; returns whether all are finite.
  TEGULA_NOINLINE static bool copy_rows(const T* from, int64_t row_step, int64_t step,
                                        int64_t count, int64_t dim, C* to) {
    const int64_t stride = round_up(dim, kLanes<C>);
    Vec<C> seen{};
    for (int64_t r = 0; r < count; ++r, from += row_step) {
      for (int64_t d = 0; d < dim; d += kLanes<C>) {
        const Vec<C> v = load_strided<C>(from + d * step, step, dim - d);
        seen = Packing<SumFormat<F>, C>::probe(seen, v);
        store(to + r * stride + d, v);
      }
    }
    return Packing<SumFormat<F>, C>::clean(seen);
  }

  // The block's rows of q and grad_out in the forms the products read, and what is known of
  // them. Rows that only fill a vector are zeros with weights of zero.
  TEGULA_NOINLINE void pack_rows(int b) {
    Block<C>& block = w.blocks[b];
    s.packed[b] = true;
    read_rows_of(b);
    // Rows far from 0 look at their keys once more, many at a time.
    if (s.far[b]) block.few = false;
    this->pack_queries(block);
    this->pack_block(g.grad_out, a.value_dim, C(1), block, grads_of(block));
    if (s.far[b]) split_log_sums(*this, block);
  }

  TEGULA_INLINE Unit* grads_of(const Block<C>& block) const {
    return s.grad_columns + block.slot * s.packed_value_units;
  }

  TEGULA_NOINLINE void read_rows_of(int b) {
    const Block<C>& block = w.blocks[b];
    const T* q = a.q.template at<T>(this->batch_offset(a.q));
    const T* grad = g.grad_out.template at<T>(this->batch_offset(g.grad_out));
    const C* lse = a.lse.template at<C>(this->batch_offset(a.lse));
    bool finite = true, far = false;
    for (int64_t slot = block.slot; slot < block.slot + block.width(); ++slot) {
      C* query_row = s.query_rows + slot * s.dim_stride;
      C* grad_row = s.grad_rows + slot * s.value_stride;
      s.split[slot] = 0;
      if (slot >= block.slot + block.rows) {
        fill(query_row, s.dim_stride, C(0));
        fill(grad_row, s.value_stride, C(0));
        s.shift[slot] = kInfinity<C>, s.shift_rest[slot] = 0, s.delta[slot] = 0;
        continue;
      }
      finite &= copy_rows(q + this->row_offset(a.q, slot), 0, a.q.step(0), 1, a.dim, query_row);
      finite &= copy_rows(grad + this->row_offset(g.grad_out, slot), 0, g.grad_out.step(0), 1,
                          a.value_dim, grad_row);
      // A row that saw nothing has weights of zero.
      double sum = lse[this->row_offset(a.lse, slot)];
      if (sum == -kInfinity<double>) sum = kInfinity<double>;
      far |= is_far(sum);
      sum /= this->to_natural;
      s.shift[slot] = static_cast<C>(sum);
      const double rest = sum - static_cast<double>(s.shift[slot]);
      s.shift_rest[slot] = rest == rest ? static_cast<C>(rest) : C(0);
      s.delta[slot] = delta_of(slot, grad_row);
    }
    s.finite[b] = finite;
    s.far[b] = far;
  }

  // rowsum(grad_out out) - grad_lse; an output of zeros, as of a row without keys, passes no
  // grad_out on.
  TEGULA_INLINE C delta_of(int64_t slot, const C* grad_row) const {
    const T* out = a.out.template at<T>(this->batch_offset(a.out) + this->row_offset(a.out, slot));
    const int64_t step = a.out.step(0);
    Vec<C> sum{};
    Vec<Int<C>> some{};
    for (int64_t d = 0; d < a.value_dim; d += kLanes<C>) {
      const Vec<C> v = load_strided<C>(out + d * step, step, a.value_dim - d);
      some |= v != C(0);
      sum = sum + load(grad_row + d) * v;
    }
    C total = 0;
    if (any_lane(some)) {
      for (int i = 0; i < kLanes<C>; ++i) total += sum[i];
    }
    if (g.grad_lse) {
      const C* grad = g.grad_lse.template at<C>(this->batch_offset(g.grad_lse));
      total -= grad[this->row_offset(g.grad_lse, slot)];
    }
    return total;
  }

  TEGULA_INLINE void enter_chunk(int64_t chunk) {
    chunk_begin = static_cast<int32_t>(chunk * kGradientKeys);
    chunk_count = static_cast<int32_t>(smaller(kGradientKeys, a.k_len - chunk_begin));
    chunk_place = all_keys ? (chunk - task.key_begin / kGradientKeys) * kGradientKeys : 0;
    const KeyRange keys = intersect(
        chunk_range(), {static_cast<int32_t>(task.key_begin), static_cast<int32_t>(task.key_end)});
    chunk_keys = {keys.begin - chunk_begin, keys.end - chunk_begin};
  }

  // `keys` of the chunk in the steps in which products read and add to them; only at the end of
  // the arrays there may be fewer.
  TEGULA_INLINE static KeyRange in_steps(KeyRange keys) {
    return {keys.begin / kKeyStep * kKeyStep, (keys.end + kKeyStep - 1) / kKeyStep * kKeyStep};
  }

  // The unit's keys and values of the chunk in the forms the products read; dk and dv begin
  // with zeros.
  TEGULA_NOINLINE void pack_chunk() {
    const KeyRange sums = in_steps(chunk_keys);
    const KeyRange keys = intersect(sums, {0, chunk_count});
    for (int32_t key = keys.begin; key < keys.end; ++key) {
      const T* v = this->value_base + (chunk_begin + key) * a.v.step(1);
      pack_row<F>(v, a.v.step(0), a.value_dim, C(1),
                  s.value_units_of_keys + (chunk_place + key) * s.packed_value_units);
      if constexpr (F::kUnitValues > 1) {  // otherwise they are the key_rows below
        const T* k = this->key_base + (chunk_begin + key) * a.k.step(1);
        pack_row<F>(k, a.k.step(0), a.dim, C(1),
                    s.key_units + (chunk_place + key) * w.packed_units);
      }
    }
    for (int32_t begin = 0; begin < chunk_count; begin += kGradientTile) {
      const KeyRange part = intersect(keys, {begin, begin + kGradientTile});
      const T* k = this->key_base + (chunk_begin + part.begin) * a.k.step(1);
      s.tile_finite[(chunk_place + begin) / kGradientTile] =
          copy_rows(k, a.k.step(1), a.k.step(0), part.end - part.begin, a.dim,
                    s.key_rows + (chunk_place + part.begin) * s.dim_stride);
    }
    fill_keys(s.dk, s.dim_stride, chunk_place, sums);
    fill_keys(s.dv, s.value_stride, chunk_place, sums);
  }

  TEGULA_INLINE static void fill_keys(C* sums, int64_t stride, int64_t place, KeyRange keys) {
    fill(sums + (place + keys.begin) * stride, (keys.end - keys.begin) * stride, C(0));
  }

  TEGULA_INLINE KeyRange chunk_range() const { return {chunk_begin, chunk_begin + chunk_count}; }
  TEGULA_INLINE bool sees_chunk(const Block<C>& block) const {
    return this->sees_some(block, chunk_range()) &&
           (!a.cells || shows_some(*this, block, chunk_range()));
  }

  // Stands on the tile that begins at key `begin` of the chunk.
  TEGULA_INLINE void enter_chunk_tile(int32_t begin) {
    tile = {};
    tile.begin = chunk_begin + begin;
    tile.count = static_cast<int32_t>(smaller(kGradientTile, chunk_count - begin));
    tile.keys = reinterpret_cast<const char*>(s.key_units + tile_key() * w.packed_units);
    tile.key_bytes = w.packed_units * static_cast<int64_t>(sizeof(Unit));
  }

  // Where the tile's first key lies in the arrays of keys.
  TEGULA_INLINE int64_t tile_key() const { return chunk_place + tile.begin - chunk_begin; }
};

// Calls body() on every chunk of the unit's keys.
template <class T, class F, class Body>
TEGULA_INLINE void for_chunks(GradContext<T, F>& c, Body&& body) {
  const int64_t first = c.task.key_begin / kGradientKeys;
  const int64_t chunks = key_chunks_of(c.task.key_begin, c.task.key_end);
  for (int64_t chunk = first; chunk < first + chunks; ++chunk) {
    c.enter_chunk(chunk);
    body();
  }
}

}  // namespace
}  // namespace tegula
