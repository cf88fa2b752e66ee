// A task at work: its rows cut into blocks, and the key tile it stands on.
#pragma once

#include "rows.inl"

namespace tegula {
namespace {

// One key tile, in the form the products read. Keys count from the tile's first.
template <class F>
struct Tile {
  int32_t begin = 0, count = 0;
  const char* keys = nullptr;  // rows of units
  int64_t key_bytes;           // from row to row
  const typename F::Unit* values = nullptr;
  int64_t value_stride;  // from unit to unit
  bool hides = false;    // a bias or a dense mask takes keys away from the block in work

  TEGULA_INLINE KeyRange range() const { return {begin, begin + count}; }
  // `range`, as far as it lies in the tile, counted from the tile's first key.
  TEGULA_INLINE KeyRange local(KeyRange range) const {
    const KeyRange part = intersect(range, this->range());
    return {part.begin - begin, part.end - begin};
  }
};

// T is the type of q, k, v and out; F how it is multiplied.
template <class T, class F>
struct Context {
  using C = typename F::Compute;
  using Unit = typename F::Unit;

  const AttentionArgs& a;
  const AttentionTask& task;
  const Pass pass;
  Workspace<F> w;
  int block_count = 0;
  int64_t slots = 0;           // rows of all blocks, padded to whole vectors
  int64_t summed_rows = 0;     // rows up to the last that products add to
  KeyRange sight{kNever, -1};  // what some row sees
  KeyRange gap{kNever, -1};    // what no row sees between its two runs
  Tile<F> tile;
  const bool gaps;      // some row may see two runs
  bool gapped = false;  // in the tile, some row of the block in work does
  // See in_tile.inl.
  Block<C> block_in_tile;
  uint32_t seen_cells;
  int64_t key_head;
  const T *key_base, *value_base;  // of the key/value head

  // Rows of the next task, sent for bit by bit.
  struct Ahead {
    const char* row;
    int64_t row_bytes, step, rows;
  };
  Ahead ahead[8];
  int ahead_count = 0;

  bool additive;      // a bias or a dense mask
  bool natural;       // scores are in natural units: options, or a scale above 1
  C query_scale;      // goes into q
  C score_scale;      // goes into the scores
  C exponent;         // score * exponent is the exponent of 2
  double to_natural;  // score * to_natural is the natural logarithm

  TEGULA_INLINE Context(const AttentionArgs& args, const AttentionTask& t, Pass p, void* memory)
      : a(args), task(t), pass(p), w(args, t.row_end - t.row_begin, p, memory), gaps(args.gap_lo) {
    additive = a.bias || a.dense;
    natural = a.bias || a.softcap > 0 || a.alibi != nullptr;
    const double scale = a.softcap > 0 ? a.scale / a.softcap : a.scale;
    const double magnitude = scale < 0 ? -scale : scale;
    // A scale above 1 could overflow q, or the exponents, where the score does not.
    const bool large = magnitude * kLog2E > 1.0;
    if (F::kUnitValues == 1 && !large) {
      query_scale = static_cast<C>(natural ? scale : scale * kLog2E);
      score_scale = C(1);
      exponent = static_cast<C>(natural ? kLog2E : 1.0);
      to_natural = natural ? 1.0 : kLn2;
    } else {
      // 0 times -inf would be NaN.
      if (large || magnitude < 1e-30) natural = true;
      query_scale = scale < 0 ? C(-1) : C(1);
      score_scale = natural ? static_cast<C>(magnitude) : C(1);
      exponent = static_cast<C>(natural ? kLog2E : magnitude * kLog2E);
      to_natural = natural ? 1.0 : magnitude;
    }
    key_head = task.first_head / (a.heads / a.key_heads);
    key_base = row_of_key(a.k, 0), value_base = row_of_key(a.v, 0);
  }

  // To be sent for: rows [begin, end) of a head in the next task's batch entry.
  TEGULA_INLINE void look_ahead(const View& view, int64_t head, int64_t begin, int64_t end) {
    const int64_t size = sizeof(T);
    if (view.step(0) != 1 || end <= begin) return;
    const T* row = view.at<T>(view.lead_offset(task.next->batch, view.rank - 3) +
                              head * view.step(2) + begin * view.step(1));
    ahead[ahead_count++] = {reinterpret_cast<const char*>(row), view.size(0) * size,
                            view.step(1) * size, end - begin};
  }

  // Keys that the next task sees and this one does not, as far as its first and last row tell.
  TEGULA_INLINE KeyRange keys_ahead() const {
    KeyRange keys{0, static_cast<int32_t>(a.k_len)};
    const AttentionTask& next = *task.next;
    if (a.lo) {
      const auto bound = [&](const View& bounds, int64_t row) {
        return *bounds.at<int32_t>(next.batch * bounds.stride[0] +
                                   next.first_head * bounds.stride[1] + row * bounds.stride[2]);
      };
      // Of two runs, the second: the first is short, or has been read by others.
      const int32_t first = bound(gaps ? a.gap_hi : a.lo, next.row_begin);
      keys = intersect(keys, {first, bound(a.hi, next.row_end - 1)});
    }
    const int64_t group = a.heads / a.key_heads;
    if (next.batch == task.batch && next.first_head / group == task.first_head / group) {
      keys = keys.begin < sight.begin ? intersect(keys, {0, sight.begin})
                                      : intersect(keys, {sight.end, keys.end});
    }
    return keys;
  }

  // Sends for some lines of the next task; called between tiles, a few lines at a time, so
  // that they travel while this one is computed.
  TEGULA_NOINLINE void prefetch_ahead() {
    for (int64_t bytes = 2048; bytes > 0 && ahead_count > 0;) {
      Ahead& area = ahead[ahead_count - 1];
      if (area.rows == 0) {
        --ahead_count;
        continue;
      }
      for (int64_t at = 0; at < area.row_bytes; at += 64) __builtin_prefetch(area.row + at, 0, 2);
      bytes -= area.row_bytes > 64 ? area.row_bytes : 64;
      area.row += area.step;
      --area.rows;
    }
  }

  // Scores must pass through with_options even where every row sees every key.
  TEGULA_INLINE bool modified() const {
    return additive || a.softcap > 0 || a.alibi != nullptr || score_scale != C(1);
  }

  // Element offset of the task's batch entry in an array (..., H, L, X).
  TEGULA_INLINE int64_t batch_offset(const View& view) const {
    return view.lead_offset(task.batch, view.rank - 3);
  }
  // Row `key` of the task's key/value head in such an array.
  TEGULA_INLINE T* row_of_key(const View& view, int64_t key) const {
    return view.at<T>(batch_offset(view) + key_head * view.step(2) + key * view.step(1));
  }
  // The row at `slot`, in such an array from its batch entry on.
  TEGULA_INLINE int64_t row_offset(const View& view, int64_t slot) const {
    return w.head[slot] * view.step(2) + w.query[slot] * view.step(1);
  }

  TEGULA_INLINE Block<C>& open_block(Sight sight_of_all) {
    Block<C>& block = w.blocks[block_count];
    block.number = block_count++;
    block.slot = slots;
    block.rows = 0;
    block.gap = {{kNever, -1}, {kNever, -1}};
    block.sight = sight_of_all;
    for (auto& lane : block.lanes) lane = sight_of_all;
    for (auto& group : block.groups) group = sight_of_all.some;
    return block;
  }

  // Rows that fill the block's last vector are copies of its last real row.
  TEGULA_INLINE void close_block(Block<C>& block) {
    block.few = pass == Pass::kForward && block.rows <= kFewRows;
    slots = block.slot + block.width();
    summed_rows = block.few ? block.slot + multiplied(block.rows) : slots;
    const int64_t vector = slots - kLanes<C>;
    const int last = block.rows - 1;
    const auto own = lane_numbers<Int<C>>() + static_cast<Int<C>>(vector - block.slot) <= last;
    const auto pad = [&](Int<C>* of_rows) {
      const Vec<Int<C>> copies = broadcast(of_rows[block.slot + last]);
      store(of_rows + vector, own ? load(of_rows + vector) : copies);
    };
    pad(w.lo), pad(w.hi), pad(w.head), pad(w.query);
    if (gaps) pad(w.gap_lo), pad(w.gap_hi);
  }

  // Rows from `row` on to the next multiple of kRowChunk, which no block of the backward pass
  // crosses.
  TEGULA_INLINE int64_t rows_to_border(int64_t row) const {
    return pass == Pass::kForward ? INT64_MAX : kRowChunk<C> - row % kRowChunk<C>;
  }

  // Every row sees every key.
  TEGULA_INLINE void cut_full_rows(int64_t head, int64_t query) {
    const int32_t keys = static_cast<int32_t>(a.k_len);
    sight = keys > 0 ? KeyRange{0, keys} : KeyRange{kNever, -1};
    for (int64_t row = task.row_begin; row < task.row_end;) {
      Block<C>& block = open_block(keys > 0 ? Sight{sight, sight} : blind());
      block.rows = static_cast<int>(smaller(kBlockRows<C>, task.row_end - row));
      block.rows = static_cast<int>(smaller(block.rows, rows_to_border(row)));
      for (int64_t slot = block.slot; slot < block.slot + block.rows; ++slot) {
        w.lo[slot] = sight.begin, w.hi[slot] = sight.end;
        w.head[slot] = static_cast<Int<C>>(head), w.query[slot] = static_cast<Int<C>>(query);
        if (++query == task.query_end) query = task.query_begin, ++head;
      }
      close_block(block);
      row += block.rows;
    }
  }

  // Rows of another document would not cost the block less than a block of their own: its keys
  // are many for its rows.
  TEGULA_INLINE static bool is_long(const Block<C>& block) {
    return block.rows >= kCutRows<C> &&
           block.sight.some.end - block.sight.some.begin >= kLongKeys * block.rows;
  }

  // Notes the gap of the block's next row. A row without keys has nothing against any gap.
  TEGULA_INLINE void add_gap(Block<C>& block, int64_t slot, const RowKeys& keys) {
    KeyRange range{kNever, -1};
    if (keys.has_gap()) {
      range = {static_cast<int32_t>(keys.gap_lo), static_cast<int32_t>(keys.gap_hi)};
    }
    w.gap_lo[slot] = range.begin, w.gap_hi[slot] = range.end;
    if (block.rows == 0) block.gap = blind();
    if (keys.empty()) return;
    add_row(block.gap, range, range);
    gap = intersect(gap, range);
  }

  // Row by row from the mask's intervals.
  TEGULA_INLINE void cut_masked_rows(int64_t head, int64_t query) {
    const auto bound = [&](const View& view) {
      return *view.at<int32_t>(task.batch * view.stride[0] + head * view.stride[1] +
                               query * view.stride[2]);
    };
    Block<C>* block = nullptr;
    if (gaps) gap = {-1, kNever};
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      const RowKeys keys = row_keys(bound(a.lo), bound(a.hi), gaps ? bound(a.gap_lo) : 0,
                                    gaps ? bound(a.gap_hi) : 0, a.k_len);
      int32_t lo = static_cast<int32_t>(keys.lo), hi = static_cast<int32_t>(keys.hi);
      if (keys.empty()) lo = kNever, hi = -1;
      if (block == nullptr || block->rows == kBlockRows<C> ||
          (row != task.row_begin && rows_to_border(row) == kRowChunk<C>) ||
          (is_long(*block) && (lo >= block->sight.some.end || hi <= block->sight.some.begin))) {
        if (block != nullptr) close_block(*block);
        block = &open_block(blind());
      }
      const int64_t slot = block->slot + block->rows;
      w.lo[slot] = lo, w.hi[slot] = hi;
      w.head[slot] = static_cast<Int<C>>(head), w.query[slot] = static_cast<Int<C>>(query);
      const KeyRange range{lo, hi};
      add_row(block->sight, range, range);
      add_row(block->lanes[block->rows / kLanes<C>], range, range);
      widen(block->groups[block->rows / kGroup<C>], range);
      widen(sight, range);
      if (gaps) add_gap(*block, slot, keys);
      ++block->rows;
      if (++query == task.query_end) query = task.query_begin, ++head;
    }
    if (block != nullptr) close_block(*block);
  }

  // Cuts the rows into blocks and notes what each row sees.
  TEGULA_NOINLINE void read_rows() {
    if (task.row_begin == task.row_end) return;
    const int64_t queries = task.query_end - task.query_begin;
    const int64_t head = task.first_head + task.row_begin / queries;
    const int64_t query = task.query_begin + task.row_begin % queries;
    if (a.lo) {
      cut_masked_rows(head, query);
    } else {
      cut_full_rows(head, query);
    }
    if (a.alibi != nullptr) {
      for (int64_t slot = 0; slot < slots; ++slot) {
        w.slope[slot] = static_cast<C>(a.alibi[w.head[slot]]);
      }
    }
    if (a.dropout.active()) {
      for (int64_t slot = 0; slot < slots; ++slot) {
        const uint64_t lead = static_cast<uint64_t>(task.batch * a.heads + w.head[slot]);
        w.lead_low[slot] = static_cast<uint32_t>(lead);
        w.lead_high[slot] = static_cast<uint32_t>(lead >> 32);
      }
    }
  }

  TEGULA_INLINE Unit* queries_of(const Block<C>& block) {
    return w.queries + block.slot * w.packed_units;
  }

  TEGULA_NOINLINE void pack_queries(const Block<C>& block) {
    pack_block(a.q, a.dim, query_scale, block, queries_of(block));
  }

  // The block's rows of such an array. Many rows: columns [unit][width]. Few: rows, each in
  // whole vectors of units.
  TEGULA_INLINE void pack_block(const View& view, int64_t dim, C scale, const Block<C>& block,
                                Unit* packed) {
    block.few ? pack_few_rows(view, dim, scale, block, packed)
              : pack_many_rows(view, dim, scale, block, packed);
  }

  TEGULA_NOINLINE void pack_few_rows(const View& view, int64_t dim, C scale, const Block<C>& block,
                                     Unit* packed) {
    const T* base = view.at<T>(batch_offset(view));
    const int64_t row_units = round_up((dim + F::kUnitValues - 1) / F::kUnitValues, kLanes<Unit>);
    for (int r = 0; r < multiplied(block.rows); ++r, packed += row_units) {
      if (r < block.rows) {
        pack_row<F>(base + row_offset(view, block.slot + r), view.step(0), dim, scale, packed);
      } else {
        fill(packed, row_units, Unit(0));
      }
    }
  }

  TEGULA_NOINLINE void pack_many_rows(const View& view, int64_t dim, C scale, const Block<C>& block,
                                      Unit* packed) {
    const T* base = view.at<T>(batch_offset(view));
    for (int j = 0; j < block.vectors(); ++j) {
      const T* rows[kLanes<C>];
      for (int i = 0; i < kLanes<C>; ++i) {
        const int r = j * kLanes<C> + i;
        rows[i] = r < block.rows ? base + row_offset(view, block.slot + r) : nullptr;
      }
      pack_columns<F>(rows, view.step(0), dim, scale, packed + j * kLanes<C>, block.width());
    }
  }

  TEGULA_INLINE const T* key_row(int64_t key) const {
    return key_base + (tile.begin + key) * a.k.step(1);
  }
  TEGULA_INLINE const T* value_row(int64_t key) const {
    return value_base + (tile.begin + key) * a.v.step(1);
  }

  // Put the tile's keys and values into the form the products read, unless they already lie
  // in it.
  TEGULA_NOINLINE void pack_keys() {
    if (sizeof(T) * F::kUnitValues == sizeof(Unit) && a.k.step(0) == 1 &&
        a.dim % F::kUnitValues == 0) {
      tile.keys = reinterpret_cast<const char*>(key_row(0));
      tile.key_bytes = a.k.step(1) * static_cast<int64_t>(sizeof(T));
      return;
    }
    for (int32_t key = 0; key < tile.count; ++key) {
      pack_row<F>(key_row(key), a.k.step(0), a.dim, C(1), w.keys + key * w.packed_units);
    }
    tile.keys = reinterpret_cast<const char*>(w.keys);
    tile.key_bytes = w.packed_units * static_cast<int64_t>(sizeof(Unit));
  }

  TEGULA_NOINLINE void pack_values() {
    if (sizeof(T) == sizeof(Unit) && a.v.step(0) == 1 && a.value_dim == w.value_stride) {
      tile.values = reinterpret_cast<const Unit*>(value_row(0));
      tile.value_stride = a.v.step(1);
      return;
    }
    for (int32_t key = 0; key < tile.count; key += F::kUnitValues) {
      const T* row = value_row(key);
      Unit* packed = w.values + key / F::kUnitValues * w.value_stride;
      for (int64_t d = 0; d < a.value_dim; d += kLanes<C>) {
        store(packed + d, Packing<F, T>::keys(row + d * a.v.step(0), a.v.step(0), a.value_dim - d,
                                              a.v.step(1), key + 1 < tile.count));
      }
    }
    tile.values = w.values;
    tile.value_stride = w.value_stride;
  }

  // Keys and values of all heads do not fit into the cache.
  TEGULA_INLINE bool keys_are_far() const {
    constexpr int64_t kThirdCache = int64_t{8} << 20;
    return a.batch * a.key_heads * a.k_len * (a.dim + a.value_dim) *
               static_cast<int64_t>(sizeof(T)) >
           kThirdCache;
  }

  // Whether some row of the block, of the task, sees one of these keys; at times true where
  // none does.
  TEGULA_INLINE bool sees_some(const Block<C>& block, KeyRange keys) const {
    return !trimmed(intersect(block.sight.some, keys), block.gap.every).empty();
  }
  TEGULA_INLINE bool sees_some(KeyRange keys) const {
    return !trimmed(intersect(sight, keys), gap).empty();
  }

  TEGULA_INLINE void enter_tile(int32_t begin) {
    tile = {};
    tile.begin = begin;
    tile.count = static_cast<int32_t>(smaller(kKeyTile<F>, a.k_len - begin));
  }
};

}  // namespace
}  // namespace tegula
