#include "embedding.h"

#include <algorithm>

#include "../base/arena.h"
#include "../base/entries.h"
#include "../base/parallel.h"
#include "../isa/select.h"

namespace tegula {
namespace {

constexpr int64_t kStreamBytes = int64_t{16} << 20;  // more than most caches keep
constexpr int64_t kChunkElements = 49152;            // of the output, to one task
// One element's cost in the scalar operations of threads_for.
constexpr double kWorkPerElement = 24.0;
constexpr double kWorkPerDraw = 24.0;

DType sum_type(DType type) { return type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

// ---- addends ----

// Memory for addend rows that are made once, where that is cheaper than row by row.
Arena& table_arena() {
  thread_local Arena arena;
  return arena;
}

// A table of kConvert or kSinusoid rows `range.low` .. `range.high` becomes a kTable.
// `memory` holds rows of `dim` numbers of the sums' type.
void tabulate(AddendRows& addend, Range range, int64_t dim, const EmbeddingKernels& kernel,
              DType sums, char* memory, int threads) {
  const int64_t rows = range.high - range.low + 1, item = item_size(sums);
  const int64_t chunk_rows = std::max<int64_t>(1, kChunkElements / 4 / std::max<int64_t>(dim, 1));
  const double work = kWorkPerElement * static_cast<double>(rows) * static_cast<double>(dim);
  const AddendRows source = addend;
  parallel_for(
      (rows + chunk_rows - 1) / chunk_rows, threads_for(work, threads), [&](int64_t chunk) {
        const int64_t end = std::min(rows, (chunk + 1) * chunk_rows);
        for (int64_t i = chunk * chunk_rows; i < end; ++i) {
          const int64_t index = range.low + i;
          kernel.addend(source, index, static_cast<double>(index), dim, memory + i * dim * item);
        }
      });
  addend.kind = AddendRows::kTable;
  addend.table = memory;
  addend.table_stride = dim;
  addend.first = range.low;
}

AddendRows addend_of(const View& table, DType sums) {
  AddendRows addend;
  if (!table) return addend;
  if (table.dtype == sums && (table.stride[1] == 1 || table.shape[1] <= 1)) {
    addend.kind = AddendRows::kTable;
    addend.table = table.data;
    addend.table_stride = table.stride[0];
  } else {
    addend.kind = AddendRows::kConvert;
    addend.source = table;
  }
  return addend;
}

// Rows that a table made beforehand would have; 0 when making them one by one is right.
int64_t rows_to_tabulate(const AddendRows& addend, Range range, int64_t rows) {
  constexpr double kExact = 9007199254740992.0;  // float64 holds every integer up to here
  if (addend.kind != AddendRows::kConvert && addend.kind != AddendRows::kSinusoid) return 0;
  if (range.low > range.high) return 0;
  const double low = static_cast<double>(range.low), high = static_cast<double>(range.high);
  const double span = high - low + 1.0;
  return low >= -kExact && high <= kExact && 2.0 * span <= static_cast<double>(rows)
             ? static_cast<int64_t>(span)
             : 0;
}

bool valid(int64_t value, int64_t limit) { return value >= 0 && value < limit; }

}  // namespace

void embedding(const EmbeddingArgs& args) {
  check_embedding(args);
  const int64_t dim = args.weight.shape[1], vocabulary = args.weight.shape[0];
  const bool has_positions = args.position_table || args.sinusoidal;
  const EmbeddingRowViews views = embedding_row_views(args);
  const int64_t count = args.ids.count();

  // Every number is looked at before anything is written.
  const int64_t* ignored = args.has_ignored ? &args.ignored : nullptr;
  checked_range(args.ids, vocabulary, ignored, "id", "ids", args.threads);
  Range position_range{0, views.length - 1}, segment_range;
  if (args.positions && args.position_table) {
    position_range = checked_range(args.positions, args.position_table.shape[0], nullptr,
                                   "position", "positions", args.threads);
  } else if (args.positions && is_integer(args.positions.dtype)) {
    position_range = range_of(args.positions, nullptr, args.threads);
  } else if (args.positions) {
    position_range = {};  // fractions: no table of them
  }
  if (args.segment_table) {
    segment_range = checked_range(args.segments, args.segment_table.shape[0], nullptr, "segment",
                                  "segments", args.threads);
  }
  if (count == 0 || dim == 0) return;

  const DType sums = sum_type(args.weight.dtype);
  const EmbeddingKernels& kernel = kernels().embedding[static_cast<int>(args.weight.dtype)];
  EmbeddingPlan plan;
  plan.weight = args.weight.data;
  plan.weight_stride = args.weight.stride[0];
  plan.weight_step = dim == 1 ? 1 : args.weight.stride[1];
  plan.dim = dim;
  plan.scale = args.scale;
  plan.dropout = args.dropout;
  plan.out_step = dim == 1 ? 1 : args.out.step(0);
  plan.stream = count * dim * item_size(args.weight.dtype) >= kStreamBytes;
  plan.position = addend_of(args.position_table, sums);
  if (args.sinusoidal) {
    plan.position.kind = AddendRows::kSinusoid;
    plan.position.sinusoid =
        make_sinusoid(dim, 10000.0, PositionLayout::kInterleaved, PositionSpacing::kPaper);
  }
  plan.segment = addend_of(args.segment_table, sums);
  const int64_t position_rows = rows_to_tabulate(plan.position, position_range, count);
  const int64_t segment_rows = rows_to_tabulate(plan.segment, segment_range, count);
  if (position_rows + segment_rows > 0) {
    const int64_t row_bytes = dim * item_size(sums);
    char* memory =
        table_arena().reserve(static_cast<size_t>((position_rows + segment_rows) * row_bytes));
    if (position_rows > 0)
      tabulate(plan.position, position_range, dim, kernel, sums, memory, args.threads);
    if (segment_rows > 0) {
      tabulate(plan.segment, segment_range, dim, kernel, sums, memory + position_rows * row_bytes,
               args.threads);
    }
  }

  const bool drops_all = args.dropout.p >= 1.0;
  const int64_t silent_pad = args.zero_pads ? args.padding_idx : -1;
  const int64_t chunk_rows = std::clamp<int64_t>(kChunkElements / dim, 1, kEmbeddingChunk);
  const size_t scratch_bytes =
      static_cast<size_t>(kEmbeddingScratch * embedding_padded(dim) * item_size(DType::kFloat64));
  const double work = (kWorkPerElement + (args.dropout.active() ? kWorkPerDraw : 0.0)) *
                      static_cast<double>(count) * static_cast<double>(dim);
  const bool by_phase = plan.position.kind == AddendRows::kSinusoid;
  const int64_t chunks = (count + chunk_rows - 1) / chunk_rows;
  // Where a sequence is whole chunks, the same part of every sequence comes before the
  // next part: its position rows are still in the cache.
  const int64_t parts = views.length % chunk_rows == 0 ? views.length / chunk_rows : 1;
  parallel_for(chunks, threads_for(work, args.threads), [&](int64_t turn) {
    EmbeddingRows rows;
    const int64_t chunk = parts > 1 ? turn % views.batch * parts + turn / views.batch : turn;
    const int64_t first = chunk * chunk_rows;
    rows.count = std::min(chunk_rows, count - first);
    const int64_t known = std::min(rows.count + kEmbeddingAhead, count - first);
    read_integers(views.ids, first, known, rows.ids);
    std::fill(rows.ids + known, rows.ids + rows.count + kEmbeddingAhead, -1);
    for (int64_t i = 0; i < known; ++i) {
      // The second look is for an array that somebody else changes meanwhile.
      if (!valid(rows.ids[i], vocabulary) || rows.ids[i] == silent_pad || drops_all ||
          (ignored != nullptr && rows.ids[i] == *ignored)) {
        rows.ids[i] = -1;
      }
    }
    if (args.segment_table) read_integers(views.segments, first, rows.count, rows.segments);
    if (args.positions && by_phase) {
      read_doubles(views.positions, first, rows.count, rows.phases);
    } else if (args.positions) {
      read_integers(views.positions, first, rows.count, rows.positions);
    }
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t index = first + i;
      rows.out[i] = views.out.lead_offset(index, views.out.rank);
      rows.lead[i] = index / views.length;
      rows.row[i] = index % views.length;
      if (!args.positions) {
        rows.positions[i] = rows.row[i];
        rows.phases[i] = static_cast<double>(rows.row[i]);
      }
      const bool inside =
          (by_phase || !has_positions ||
           valid(rows.positions[i] - position_range.low,
                 position_range.high - position_range.low + 1)) &&
          (!args.segment_table || valid(rows.segments[i], args.segment_table.shape[0]));
      if (!inside) rows.ids[i] = -1;
    }
    kernel.rows(plan, rows, args.out.data, thread_arena().reserve(scratch_bytes));
    thread_arena().trim();
  });
  table_arena().trim();
}

}  // namespace tegula
