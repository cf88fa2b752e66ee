#include "mask.h"

#include <algorithm>
#include <atomic>

#include "../base/arena.h"
#include "../base/parallel.h"
#include "../isa/select.h"

namespace tegula {
namespace {

// What one task reads or writes.
constexpr int64_t kTaskBytes = int64_t{256} << 10;
// A larger result does not stay in the caches anyway.
constexpr int64_t kStreamBytes = int64_t{16} << 20;

// Calls body(begin, end) for pieces of the rows of `array`, (B, H, L, X), each of which costs
// reading or writing so many bytes.
template <class Body>
void over_rows(const View& array, int64_t row_bytes, int threads, Body&& body) {
  const int64_t rows = array.shape[0] * array.shape[1] * array.shape[2];
  row_bytes = std::max<int64_t>(1, row_bytes);
  const int64_t piece = std::max<int64_t>(1, kTaskBytes / row_bytes);
  threads = threads_for(static_cast<double>(rows) * static_cast<double>(row_bytes), threads);
  parallel_for((rows + piece - 1) / piece, threads,
               [&](int64_t index) { body(index * piece, std::min(rows, (index + 1) * piece)); });
}

}  // namespace

void mask_fill(const MaskFillArgs& args, int threads) {
  if (args.out.count() == 0) return;
  const auto fill = kernels().mask.fill;
  const bool streaming = args.out.count() * item_size(args.out.dtype) >= kStreamBytes;
  over_rows(args.out, args.out.shape[3] * item_size(args.out.dtype), threads,
            [&](int64_t begin, int64_t end) { fill(args, begin, end, streaming); });
}

MaskRuns mask_scan(const MaskScanArgs& args, int threads) {
  const auto scan = kernels().mask.scan;
  std::atomic<MaskRuns> most{MaskRuns::kOne};
  over_rows(args.dense, args.dense.shape[3], threads, [&](int64_t begin, int64_t end) {
    const MaskRuns found = scan(args, begin, end);
    MaskRuns before = most.load(std::memory_order_relaxed);
    while (before < found &&
           !most.compare_exchange_weak(before, found, std::memory_order_relaxed)) {
    }
  });
  return most.load(std::memory_order_relaxed);
}

View mask_cells(const View& dense, TakenArena& memory, int threads) {
  MaskCellsArgs args{dense, {}};
  for (int axis = 0; axis < 3; ++axis) {
    if (args.dense.stride[axis] == 0) args.dense.shape[axis] = 1;
  }
  View& cells = args.cells;
  cells.dtype = DType::kBool, cells.rank = 4;
  const int64_t sizes[] = {1, 1, kCellQueries, kCellKeys};
  int64_t count = 1;
  for (int axis = 3; axis >= 0; --axis) {
    cells.shape[axis] = (args.dense.shape[axis] + sizes[axis] - 1) / sizes[axis];
    cells.stride[axis] = count;
    count *= cells.shape[axis];
  }
  cells.data = memory.reserve(static_cast<size_t>(count));
  const auto fill = kernels().mask.cells;
  over_rows(cells, kCellQueries * dense.shape[3], threads,
            [&](int64_t begin, int64_t end) { fill(args, begin, end); });
  for (int axis = 0; axis < 3; ++axis) {
    if (cells.shape[axis] == 1) cells.stride[axis] = 0;
  }
  return cells;
}

}  // namespace tegula
